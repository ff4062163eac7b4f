// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"bytes"
	"testing"
)

func FuzzDecode(f *testing.F) {
	f.Add(encode([]byte(`{"id":"1"}`), []byte("body")))
	f.Add(encode(nil, nil))
	f.Add([]byte("policyd call 1 \n"))
	f.Add([]byte("policyd call 1 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		head, body, err := decode(data)
		if err != nil {
			return
		}
		if again := encode(head, body); !bytes.Equal(again, data) {
			t.Fatalf("%q reads as %q", data, again)
		}
	})
}
