// SPDX-License-Identifier: Apache-2.0

package policyqueue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policyqueue"
	"github.com/policyd/policyd/sdk/go/policytest"
)

func Example() {
	ctx := context.Background()
	q, err := policyqueue.Open(policyqueue.Config{
		Dir:       "/var/lib/notes/queue", // one process at a time
		Authorize: addToken,               // credentials are not stored
		OnSettled: tell,                   // what became of each call
	})
	if err != nil {
		fmt.Println("no queue:", err)
		return
	}
	fmt.Println(save(ctx, q, "milk"))
	_ = q.Close(ctx) // what waits stays on disk
}

func addToken(req *http.Request) error {
	token, err := os.ReadFile("/run/secrets/token")
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return err
}

func tell(s policyqueue.Settled) {
	if s.Err != nil {
		fmt.Println("lost:", s.ID, s.Err)
	}
}

func save(ctx context.Context, q *policyqueue.Queue, note string) string {
	api := &http.Client{Transport: q.Transport()}
	ctx = policyqueue.Keep(ctx) // this call may be kept
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://notes.example/notes", strings.NewReader(note))
	if err != nil {
		return err.Error()
	}
	resp, err := api.Do(req)
	switch {
	case errors.Is(err, policyd.ErrQueued):
		return "saved on this machine, will be sent later"
	case errors.Is(err, policyd.ErrQueueFull):
		return "too many unsent notes"
	case err != nil:
		return err.Error()
	}
	return resp.Status + closed(resp)
}

func closed(resp *http.Response) string {
	if err := resp.Body.Close(); err != nil {
		return err.Error()
	}
	return ""
}

// A sender lets gRPC calls, or any other function, be kept.
func ExampleQueue_Do() {
	save := func(ctx context.Context, payload []byte) error {
		a, _ := policyd.AttemptFrom(ctx)
		fmt.Println("send", len(payload), "bytes under", a.IdempotencyKey) // or call a gRPC client
		return nil
	}
	q, err := policyqueue.Open(policyqueue.Config{
		Dir:     "/var/lib/notes/queue",
		Senders: map[string]policyqueue.Sender{"shop/notes/save": save},
	})
	if err != nil {
		return
	}
	err = q.Do(context.Background(), "shop/notes/save", []byte("milk"), policyd.IdempotencyKey("note-7"))
	if errors.Is(err, policyd.ErrQueued) {
		fmt.Println("will be sent later")
	}
}

func ExampleQueue_Items() {
	var q *policyqueue.Queue // of Open
	for _, item := range q.Items() {
		if item.Endpoint == "shop/notes/draft" {
			_ = q.Remove(item.ID) // not needed any more
		}
	}
	fmt.Println(q.Len(), "calls wait")
}

func ExampleQueue_Flush() {
	var q *policyqueue.Queue // of Open
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	done, err := q.Flush(ctx) // the user pressed "sync now"
	fmt.Println(done.Sent, done.Failed, done.Left, err)
}

// In tests, policytest gives a client with policies, and a synctest bubble makes the waits
// take no time.
func ExampleConfig_inTests() {
	_ = func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			fake := policytest.New(t, notes)
			q, err := policyqueue.Open(policyqueue.Config{
				Dir: t.TempDir(), Client: fake.Client(), Base: policytest.Script(503, 503, 200),
				OnSettled: func(s policyqueue.Settled) {
					body, _ := io.ReadAll(s.Response.Body)
					t.Logf("%s: %s", s.Item.ID, body)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close(t.Context())
			// …
		})
	}
}
