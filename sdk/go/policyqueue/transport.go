// SPDX-License-Identifier: Apache-2.0

package policyqueue

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	policyd "github.com/policyd/policyd/sdk/go"
)

// Transport returns the transport that callers use: [policyd.Client.Transport] of the queue's
// client around [Config].Base, which also keeps requests whose context comes from [Keep]. Up
// to [Config].MaxBody of the body of such a request is read before it is sent, unless it has
// a GetBody.
func (q *Queue) Transport() http.RoundTripper { return transport{q} }

type transport struct{ q *Queue }

// CloseIdleConnections closes what the base keeps for later, if it can.
func (t transport) CloseIdleConnections() {
	if inner, ok := t.q.inner.(interface{ CloseIdleConnections() }); ok {
		inner.CloseIdleConnections()
	}
}

// RoundTrip makes a call, and keeps it if that is to be.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	q, ctx := t.q, req.Context()
	if req.URL == nil {
		return q.inner.RoundTrip(req)
	}
	if !mayKeep(ctx) {
		resp, err := q.inner.RoundTrip(req)
		if err == nil && resp.StatusCode < http.StatusBadRequest {
			q.answered(resp) //nolint:contextcheck // that of the response
		}
		return resp, err
	}
	in, req, err := q.intendRequest(req)
	if err != nil {
		return nil, err
	}
	if in == nil {
		return q.inner.RoundTrip(req)
	}
	if err := q.join(ctx, in); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	resp, err := q.inner.RoundTrip(req)
	e, gaveUp := endedBy(resp, err, in.to.Name) //nolint:contextcheck // that of the response
	if !gaveUp {
		return resp, err
	}
	told := q.keepFailed(ctx, in, e)
	if told == nil {
		return resp, err
	}
	if resp != nil {
		_ = resp.Body.Close()
	}
	return nil, told
}

// intendRequest is intend for a request. The request to be sent has the call's key, and a
// body that can be read once more; an error is that of reading it.
func (q *Queue) intendRequest(req *http.Request) (*intent, *http.Request, error) {
	in := q.intend(q.core.Target(q.inner, req))
	if in == nil {
		return nil, req, nil
	}
	stored, err := q.store(req, in.to.Policy.Idempotency.Key.Header)
	if err != nil {
		if q.first(in.to.Name, "not stored") {
			q.cfg.Logger.Warn("request is not kept", "endpoint", in.to.Name, "reason", err)
		}
		return nil, req, nil
	}
	in.http = stored
	outer := req
	req = req.WithContext(policyd.WithCall(req.Context(), policyd.IdempotencyKey(in.key)))
	if in.body, err = q.body(req); err != nil {
		return nil, nil, err
	}
	if in.body == nil {
		q.tooLong(in.to.Name)
		if req.Body == outer.Body {
			return nil, outer, nil
		}
		return nil, req, nil
	}
	return in, req, nil
}

func (q *Queue) tooLong(endpoint string) {
	if q.first(endpoint, "too long") {
		q.cfg.Logger.Warn("call is not kept: its body is longer than Config.MaxBody", "endpoint", endpoint, "max_body", q.cfg.MaxBody)
	}
}

// body returns how the body of a request is read once more, nil if it is too long. It may
// replace the request's body.
func (q *Queue) body(req *http.Request) (func() ([]byte, error), error) {
	switch again := req.GetBody; {
	case req.Body == nil || req.Body == http.NoBody:
		return func() ([]byte, error) { return nil, nil }, nil
	case req.ContentLength > q.cfg.MaxBody:
		return nil, nil
	case again != nil && req.ContentLength >= 0:
		return func() ([]byte, error) { return readAgain(again) }, nil
	}
	start, err := io.ReadAll(io.LimitReader(req.Body, q.cfg.MaxBody+1))
	if err != nil {
		return nil, errors.Join(err, req.Body.Close())
	}
	if int64(len(start)) > q.cfg.MaxBody {
		req.Body = &longBody{io.MultiReader(bytes.NewReader(start), req.Body), req.Body}
		return nil, nil
	}
	if err := req.Body.Close(); err != nil {
		return nil, err
	}
	req.ContentLength = int64(len(start))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(start)), nil }
	req.Body, _ = req.GetBody()
	return func() ([]byte, error) { return start, nil }, nil
}

func readAgain(again func() (io.ReadCloser, error)) ([]byte, error) {
	body, err := again()
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(body)
	return all, errors.Join(err, body.Close())
}

// longBody is a body whose start was read.
type longBody struct {
	io.Reader
	io.Closer
}

// endedBy reads why the policy ended a request.
func endedBy(resp *http.Response, err error, endpoint string) (ended, bool) {
	if err != nil {
		return failedBy(err, endpoint)
	}
	o, ok := policyd.OutcomeOf(resp)
	if !ok || !keepsCode(o.Code) {
		return ended{}, false
	}
	return ended{code: o.Code, attempts: o.Attempts, revision: o.Revision, last: answer(resp.StatusCode)}, true
}

// answer is the error that stands for a response.
type answer int

func (a answer) Error() string {
	if text := http.StatusText(int(a)); text != "" {
		return strconv.Itoa(int(a)) + " " + text
	}
	return strconv.Itoa(int(a))
}

// StatusCode is how other layers find the status.
func (a answer) StatusCode() int { return int(a) }

// answered has the lane of a call that was answered try soon.
func (q *Queue) answered(resp *http.Response) {
	q.mu.Lock()
	waits := len(q.lanes) > 0
	q.mu.Unlock()
	if !waits {
		return
	}
	if o, ok := policyd.OutcomeOf(resp); ok {
		q.alive(context.WithoutCancel(resp.Request.Context()), o.Endpoint)
	}
}
