// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"net/http"
	"time"

	"github.com/policyd/policyd/sdk/go/internal/answer"
)

// sent is an attempt that was made.
type sent struct {
	req    *http.Request // as it was sent; nil in Do
	resp   *http.Response
	err    error
	cancel context.CancelFunc // ends the attempt's context; nil without one of its own
	timer  *time.Timer        // that does so at the time limit
	limit  *timeoutError      // what it says then
	cut    *timeoutError      // limit, if it was reached
}

// fail replaces the response, if there is one, by an error: its body would break off.
func (s *sent) fail(err error) {
	if s.resp != nil && s.resp.Body != nil {
		_ = s.resp.Body.Close()
	}
	s.resp, s.err = nil, err
}

// failure is what an attempt that may be repeated ended with.
func (s *sent) failure() error {
	if s.err != nil {
		return s.err
	}
	return statusError(s.resp.StatusCode)
}

func (s *sent) status() int {
	if s.resp == nil {
		return statusOf(s.err)
	}
	return s.resp.StatusCode
}

// hold readies a response for the wait before a retry.
func (s *sent) hold() {
	if answer.Hold(s.resp) && s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
}

// discard closes a response that is not wanted and ends its attempt.
func (s *sent) discard() {
	if s.resp != nil && s.resp.Body != nil {
		_ = s.resp.Body.Close()
	}
	if s.cancel != nil {
		s.cancel()
	}
}

// release readies a response for the caller: OutcomeOf finds the call, and the attempt's
// context lasts as long as the body.
func (s *sent) release(k *call) {
	if s.resp == nil {
		return
	}
	if s.req != nil && (s.resp.Request == nil || s.resp.Request != s.req && recordOf(s.resp.Request) != k.record) {
		s.resp.Request = s.req
	}
	if s.cancel != nil {
		answer.Until(s.resp, s.cancel)
	}
}

func recordOf(req *http.Request) *record {
	if m := markOf(req.Context()); m != nil {
		return m.of
	}
	return nil
}
