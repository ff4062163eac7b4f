// SPDX-License-Identifier: Apache-2.0

package pattern

import (
	"path"
	"strings"

	"github.com/policyd/policyd/sdk/go/internal/nfc"
)

// Path is the one spelling of a path: clean and canonical. It reports false for a bad escape,
// which matches nothing.
func Path(p string) (string, bool) {
	if plain(p) {
		return p, true
	}
	return Canonical(Clean(p))
}

// plain reports whether a path is as it should be, as nearly all are, in one look.
func plain(p string) bool {
	if p == "" || p[0] != '/' {
		return false
	}
	slash := false
	for i := range len(p) {
		c := p[i]
		if c == '%' || c >= 0x80 || slash && (c == '/' || c == '.') {
			return false
		}
		slash = c == '/'
	}
	return true
}

// Clean removes empty and dot segments as net/http.ServeMux does, keeping a trailing
// slash. It allocates only if there is something to clean.
func Clean(p string) string {
	if p == "" {
		return "/"
	}
	if p[0] != '/' {
		p = "/" + p
	}
	if !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return p
	}
	clean := path.Clean(p)
	if p[len(p)-1] == '/' && clean != "/" {
		clean += "/"
	}
	return clean
}

// Canonical gives equal paths one spelling: escapes are decoded, but for %2F, which is
// no separator, and %25; text beyond ASCII is composed (NFC). It reports false for a bad
// escape, which matches nothing.
func Canonical(p string) (string, bool) {
	ascii := true
	escaped := false
	for i := 0; i < len(p); i++ {
		escaped = escaped || p[i] == '%'
		ascii = ascii && p[i] < 0x80
	}
	if escaped {
		decoded := make([]byte, 0, len(p))
		for i := 0; i < len(p); i++ {
			if p[i] != '%' {
				decoded = append(decoded, p[i])
				continue
			}
			if i+2 >= len(p) {
				return "", false
			}
			hi, lo := unhex(p[i+1]), unhex(p[i+2])
			if hi > 15 || lo > 15 {
				return "", false
			}
			i += 2
			switch c := hi<<4 | lo; c {
			case '/':
				decoded = append(decoded, "%2F"...)
			case '%':
				decoded = append(decoded, "%25"...)
			default:
				decoded = append(decoded, c)
				ascii = ascii && c < 0x80
			}
		}
		p = string(decoded)
	}
	if !ascii {
		p = nfc.Compose(p)
	}
	return p, true
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}

// BareHost returns a host in lower case, without port, brackets and final dot.
func BareHost(host string) string {
	if strings.HasPrefix(host, "[") {
		if end := strings.IndexByte(host, ']'); end > 0 {
			host = host[1:end]
		}
	} else if colon := strings.IndexByte(host, ':'); colon >= 0 && strings.IndexByte(host[colon+1:], ':') < 0 {
		host = host[:colon]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
