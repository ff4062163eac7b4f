// SPDX-License-Identifier: Apache-2.0

package policyqueue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/policyd/policyd/sdk/go/internal/spool"
)

// call is what is stored of a call beside its body or payload.
type call struct {
	ID        string         `json:"id"`
	Endpoint  string         `json:"endpoint"`
	Unmatched bool           `json:"unmatched,omitempty"`
	Key       string         `json:"key"`
	Queued    time.Time      `json:"queued"`
	TTL       time.Duration  `json:"ttl"`
	Attempts  int            `json:"attempts"`
	HTTP      *storedRequest `json:"http,omitempty"` // nil: a payload, for the endpoint's sender
}

func (c *call) encode() ([]byte, error) { return json.Marshal(c) }

// decodeCall reads what encode wrote. Any input is allowed.
func decodeCall(head []byte) (*call, error) {
	c, err := readCall(head)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", spool.ErrDamaged, err)
	}
	return c, nil
}

func readCall(head []byte) (*call, error) {
	d := json.NewDecoder(bytes.NewReader(head))
	d.DisallowUnknownFields()
	c := &call{}
	if err := d.Decode(c); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows")
	}
	if c.ID == "" || c.Endpoint == "" || c.Key == "" || c.TTL <= 0 || c.Attempts < 0 {
		return nil, errors.New("a part is missing")
	}
	if c.HTTP != nil {
		return c, c.HTTP.check()
	}
	return c, nil
}

func (c *call) item(sends int) Item {
	return Item{
		ID: c.ID, Endpoint: c.Endpoint, Unmatched: c.Unmatched, Key: c.Key,
		QueuedAt: c.Queued, ExpiresAt: c.Queued.Add(c.TTL), Attempts: c.Attempts + sends,
	}
}
