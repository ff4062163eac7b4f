// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/policyd/policyd/sdk/go/engine"
)

const defaultKeyHeader = "Idempotency-Key"

// newKey returns a random UUID, version 4.
func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var s [36]byte
	hex.Encode(s[:8], b[:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:], b[10:])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// quoteKey writes a key as a structured-field string (RFC 8941). It reports false for a
// key with characters that such a string cannot hold.
func quoteKey(key string) (string, bool) {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(key); i++ {
		c := key[i]
		if c < ' ' || c > '~' {
			return "", false
		}
		if c == '"' || c == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	b.WriteByte('"')
	return b.String(), true
}

// headerKey is the idempotency key of an HTTP call.
type headerKey struct {
	name  string // header; empty when none has to be added
	value string // as written there
	key   string // the key itself; empty for none
}

// keyOf finds the key of a call: the header that the caller set, else the option, else one
// of its own where the policy wants that.
func keyOf(req *http.Request, option string, repeats bool, p *engine.KeyPolicy) headerKey {
	name := p.Header
	if name == "" {
		name = defaultKeyHeader
	}
	if set := req.Header.Get(name); set != "" {
		return headerKey{key: unquoteKey(set)}
	}
	key := option
	if key == "" {
		if !p.Enabled || !p.Auto || repeats {
			return headerKey{}
		}
		key = newKey()
	}
	value := key
	if p.Quoted {
		if q, ok := quoteKey(key); ok {
			value = q
		}
	}
	return headerKey{name: name, value: value, key: key}
}

func unquoteKey(value string) string {
	if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
		return value
	}
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(value[1 : len(value)-1])
}
