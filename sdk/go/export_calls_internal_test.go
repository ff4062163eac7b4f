// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Put replaces the documents and switches in force, as an update from policyd does.
func (c *Client) Put(documents []engine.Document, switches ...engine.Switch) {
	next := content{revision: c.revision() + 1, documents: map[engine.Scope]*engine.Document{}, switches: switches}
	for i := range documents {
		next.documents[documents[i].Scope] = &documents[i]
	}
	c.install(next, time.Now())
}

// Stats returns the engine's counters of a named endpoint.
func (c *Client) Stats(endpoint string) *engine.Stats {
	s := c.endpoint(endpoint).Stats(c.now())
	return &s
}
