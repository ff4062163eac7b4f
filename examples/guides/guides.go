// SPDX-License-Identifier: Apache-2.0

// Package guides has the programs of docs/guides, which show their lines.
package guides

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	policyd "github.com/policyd/policyd/sdk/go"
)

// Orders is a service in the middle: it is called, and calls another one for that.
func Orders(api *http.Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), "GET", "http://stock.shop/items/1", nil) // the request's context
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		resp, err := api.Do(req)
		if err != nil {
			http.Error(w, "stock is away", http.StatusServiceUnavailable)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})
	handler := policyd.Incoming(mux) // reads the mark of the caller
	return handler
}

// Watched tells what a policy would do, and what it costs and brings, by endpoint.
func Watched(client *policyd.Client) string {
	var b strings.Builder
	for _, s := range client.Endpoints() {
		fmt.Fprintf(&b, "%s: %d calls, %d would be retried, %d not for lack of budget\n",
			s.Endpoint, s.Calls, s.Observed, s.Suppressed(policyd.CodeBudget))
	}
	return b.String()
}

// Pay charges an order once, however often it is tried.
func Pay(ctx context.Context, api *http.Client, orderID, body string) (*http.Response, error) {
	ctx = policyd.WithCall(ctx, policyd.IdempotencyKey("charge-"+orderID)) // one key per order, not per attempt
	req, err := http.NewRequestWithContext(ctx, "POST", "http://payments.shop/v1/charges", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return api.Do(req)
}

// Charges is the other side: it remembers keys, and answers a repeat with what it answered
// first.
type Charges struct {
	mu    sync.Mutex
	known map[string]string // guarded by mu; answers by key
	Made  int               // guarded by mu
}

func (c *Charges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	answer, repeat := c.known[key]
	if !repeat {
		c.Made++
		answer = fmt.Sprintf(`{"charge": %d}`, c.Made)
		if c.known == nil {
			c.known = map[string]string{}
		}
		c.known[key] = answer // in the transaction that makes the charge
	}
	_, _ = io.WriteString(w, answer)
}

// Shop is an application to be tested.
type Shop struct{ HTTP *http.Client }

// Price asks the catalogue for a price, and has an answer without it.
func (s Shop) Price(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://catalog.shop/v1/items/42", nil)
	if err != nil {
		return "", err
	}
	resp, err := s.HTTP.Do(req)
	if err != nil {
		return "price on request", nil
	}
	defer resp.Body.Close()
	return resp.Status, nil
}
