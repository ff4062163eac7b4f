// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"net/http"
	"time"
)

// Outcome is what the policy did for a call that ended with a response.
type Outcome struct {
	Endpoint string
	Attempts int           // sends, this response's included
	Waited   time.Duration // between attempts
	Code     Code          // why no further attempt was made; "" when the last one was final
	Revision int64         // of the policies in force when the call ended
}

// OutcomeOf tells what the policy did for this response: attempts, waits, and why it
// stopped. ok is false for responses that did not pass through [Transport], or whose
// Request was replaced since. Safe for concurrent use.
func OutcomeOf(resp *http.Response) (o Outcome, ok bool) {
	if resp == nil || resp.Request == nil {
		return Outcome{}, false
	}
	m := markOf(resp.Request.Context())
	if m == nil || m.of == nil || !m.of.ended.Load() {
		return Outcome{}, false
	}
	r := m.of
	return Outcome{
		Endpoint: r.ep.name, Attempts: int(r.attempts), Waited: r.waited, Code: r.code, Revision: r.revision,
	}, true
}
