// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// Script returns a transport that answers with these statuses, one per request, and then
// repeats the last for ever: Script(503, 503, 200) fails twice. Without a status it answers
// 200. No network; the request's body is read to its end and closed, a response's body is
// the text of its status. A request whose context has ended is not answered. Safe for
// concurrent use.
func Script(status ...int) http.RoundTripper {
	if len(status) == 0 {
		status = []int{http.StatusOK}
	}
	return &script{status: append([]int(nil), status...)}
}

type script struct {
	status []int
	next   atomic.Int64
}

// RoundTrip answers with the next status.
func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, err := io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	n := min(s.next.Add(1), int64(len(s.status)))
	code := s.status[n-1]
	text := http.StatusText(code)
	body := io.NopCloser(strings.NewReader(text))
	if req.Method == http.MethodHead {
		body = http.NoBody
	}
	return &http.Response{
		Status: strconv.Itoa(code) + " " + text, StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, Body: body,
		ContentLength: int64(len(text)), Request: req,
	}, nil
}
