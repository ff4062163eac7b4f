// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/replay"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

// race is the attempts of a call that run at once, each on a goroutine of its own. The first
// answer that no other attempt could better wins; the others are cancelled.
type race struct {
	call   *call
	ctx    context.Context //nolint:containedctx // the caller's, as long as the call
	launch func(m *mark) (send func(), of *entrant)
	judge  func(*entrant) engine.Outcome
	body   *replay.Body // to be sent again; nil for none

	arrived chan *entrant
	live    []*entrant

	mu   sync.Mutex
	over bool // guarded by mu; what arrives now is thrown away
}

// entrant is one attempt of a race.
type entrant struct {
	mark   *mark
	sent   sent
	cancel context.CancelFunc
	value  any // of Do

	done     bool // send returned
	panicked any
}

// maxAtOnce is more than the attempts that can be in progress at once.
const maxAtOnce = 4

// hedges reports whether the attempt in progress may get company, and after what time.
func (k *call) hedges() (time.Duration, bool) {
	if k.engine.Policy().Extras == nil || k.passive {
		return 0, false
	}
	return k.engine.HedgeAfter()
}

// run makes the attempt of m, and others beside it while it is slow. It returns the one that
// decides, settled if there were several.
func (r *race) run(m *mark, after time.Duration) *entrant {
	r.arrived = make(chan *entrant, maxAtOnce)
	defer r.end()
	r.start(m)
	timer := time.NewTimer(after)
	defer timer.Stop()
	k, several := r.call, false
	for {
		select {
		case <-timer.C:
			if r.ctx.Err() != nil || !r.hedge() {
				continue
			}
			several = true
			if next, ok := k.engine.HedgeAfter(); ok {
				timer.Reset(next)
			}
		case n := <-r.arrived:
			r.drop(n)
			switch {
			case n.done:
			case n.panicked != nil:
				panic(n.panicked)
			default:
				runtime.Goexit() // as the function did
			}
			o := r.judge(n)
			if !several {
				return n
			}
			if n.sent.err != nil && r.ctx.Err() != nil {
				o = engine.Outcome{Kind: engine.OutcomeCancelled}
			}
			d := *k.engine.SettleAttempt(k.client.now(), n.mark.number, o)
			k.note(&d)
			if !d.Pending {
				k.decided = &d
				return n
			}
			n.sent.discard()
		}
	}
}

// hedge sends another attempt, if the engine lets it.
func (r *race) hedge() bool {
	k := r.call
	if r.body.Prepare(r.ctx) != nil {
		return false
	}
	d := k.engine.Hedge(k.client.now())
	if k.note(d); !d.Proceed {
		r.body.Spare()
		return false
	}
	m := &mark{Context: r.ctx, config: k.mark.config, call: k, number: k.engine.Attempts(), hedge: true}
	k.starts(m)
	r.start(m)
	return true
}

func (r *race) start(m *mark) {
	ctx, cancel := context.WithCancel(r.ctx)
	m.Context = ctx
	send, n := r.launch(m)
	n.mark, n.cancel = m, cancel
	r.live = append(r.live, n)
	go func() {
		defer func() {
			if !n.done {
				n.panicked = recover()
			}
			r.arrive(n)
		}()
		send()
		n.done = true
	}()
}

// arrive hands an attempt that is over to the caller, or throws it away.
func (r *race) arrive(n *entrant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.arrived <- n
		return
	}
	r.lose(n)
}

func (r *race) lose(n *entrant) {
	if n.panicked != nil {
		r.call.client.cfg.logger.Error("an attempt that was no longer wanted panicked", "endpoint", r.call.ep.name, "panic", state.Printable(n.panicked))
	}
	if n.sent.timer != nil {
		n.sent.timer.Stop()
	}
	n.sent.discard()
	n.cancel()
}

func (r *race) drop(n *entrant) {
	for i, other := range r.live {
		if other == n {
			r.live = append(r.live[:i], r.live[i+1:]...)
			break
		}
	}
	if n.sent.resp == nil {
		n.cancel()
		return
	}
	inner := n.sent.cancel // the context of a response lasts as long as its body
	n.sent.cancel = func() {
		if inner != nil {
			inner()
		}
		n.cancel()
	}
}

// end cancels the attempts that are not wanted any more.
func (r *race) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for _, n := range r.live {
		n.cancel()
	}
	for {
		select {
		case n := <-r.arrived:
			r.lose(n)
		default:
			return
		}
	}
}

// race makes an attempt over HTTP and hedges beside it.
func (x *exchange) race(ctx context.Context, m *mark, body io.ReadCloser, after time.Duration) sent {
	r := race{call: &x.call, ctx: ctx, body: x.body}
	r.launch = func(m *mark) (func(), *entrant) { //nolint:contextcheck // m is ctx
		n := &entrant{}
		if m.hedge {
			body = x.body.Next()
		}
		own := m.Context
		x.arm(own, m, &n.sent)
		n.sent.req = x.request(m, body)
		return func() { x.trip(own, &n.sent) }, n
	}
	r.judge = func(n *entrant) engine.Outcome { return x.judge(&n.sent) }
	return r.run(m, after).sent
}

// settled is what a race came to, unless the caller has left since.
func (k *call) settled(o engine.Outcome) engine.Decision {
	d := *k.decided
	k.decided = nil
	if d.Retry && o.Kind == engine.OutcomeCancelled {
		k.note(k.engine.Abandon(k.client.now()))
	}
	return d
}

// observeHedge counts the hedge that a slow first attempt would have got, were the policy
// not observed only.
func (k *call) observeHedge() {
	if !k.passive || k.engine.Policy().Extras == nil {
		return
	}
	now := k.client.now()
	if after, ok := k.engine.HedgeAfter(); ok && k.engine.Attempts() == 1 && now.Sub(k.began) > after {
		k.note(k.engine.Hedge(now))
	}
}

// parallel is hedges for a function: only one that may run several times at once gets
// company.
func (r *run) parallel() (time.Duration, bool) {
	if r.config == nil || !r.config.concurrent {
		return 0, false
	}
	return r.hedges()
}

// raceDo runs fn, and again beside itself while it is slow. The attempt that decides is left
// in r.sent.
func raceDo[T any](ctx context.Context, r *run, m *mark, after time.Duration, fn func(context.Context) (T, error)) T {
	var none T
	_, response := any(&none).(**http.Response)
	c := race{call: &r.call, ctx: ctx}
	c.launch = func(m *mark) (func(), *entrant) { //nolint:contextcheck // m is ctx
		n := &entrant{}
		own := m.Context
		r.open(own, m, response, &n.sent)
		return func() {
			v, err := fn(m) //nolint:contextcheck // m is ctx
			n.value = v
			r.shut(own, m, v, err, &n.sent)
		}, n
	}
	c.judge = func(n *entrant) engine.Outcome {
		r.sent = n.sent
		return r.judge()
	}
	n := c.run(m, after)
	r.sent = n.sent
	v, _ := n.value.(T)
	return v
}
