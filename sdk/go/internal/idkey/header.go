// SPDX-License-Identifier: Apache-2.0

package idkey

import (
	"net/http"

	"github.com/policyd/policyd/sdk/go/engine"
)

// DefaultHeader carries keys unless the policy names another one.
const DefaultHeader = "Idempotency-Key"

// Header is the idempotency key of an HTTP call.
type Header struct {
	Name  string // empty when none has to be added
	Value string // as written there
	Key   string // the key itself; empty for none
}

// Of finds the key of a call: the header that the caller set, else the option, else one
// of its own where the policy wants that.
func Of(req *http.Request, option string, repeats bool, p *engine.KeyPolicy) Header {
	name := p.Header
	if name == "" {
		name = DefaultHeader
	}
	if set := req.Header.Get(name); set != "" {
		return Header{Key: Unquote(set)}
	}
	key := option
	if key == "" {
		if !p.Enabled || !p.Auto || repeats {
			return Header{}
		}
		key = New()
	}
	value := key
	if p.Quoted {
		if q, ok := Quote(key); ok {
			value = q
		}
	}
	return Header{Name: name, Value: value, Key: key}
}
