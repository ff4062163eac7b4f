// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"io"
	"log/slog"
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
	ctx  context.Context //nolint:containedctx // the caller's, as long as the call
	body *replay.Body    // to be sent again; nil for none
	goal *goal
	live []*entrant
}

// launcher readies the attempt of m; send makes it.
type launcher func(m *mark) (send func(), of *entrant)

// goal is where attempts arrive. Their goroutines see nothing else of the call, which may be
// over by then.
type goal struct {
	arrived chan *entrant
	log     *slog.Logger
	name    string // of the endpoint

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
func (r *race) run(k *call, m *mark, after time.Duration, launch launcher, judge func(*entrant) engine.Outcome) *entrant {
	r.goal = &goal{arrived: make(chan *entrant, maxAtOnce), log: k.client.cfg.logger, name: k.ep.name}
	defer r.end()
	r.start(m, launch)
	timer := time.NewTimer(after)
	defer timer.Stop()
	several := false
	for {
		select {
		case <-timer.C:
			if r.ctx.Err() != nil || !r.hedge(k, launch) {
				continue
			}
			several = true
			if next, ok := k.engine.HedgeAfter(); ok {
				timer.Reset(next)
			}
		case n := <-r.goal.arrived:
			r.drop(n)
			switch {
			case n.done:
			case n.panicked != nil:
				panic(n.panicked)
			default:
				runtime.Goexit() // as the function did
			}
			o := judge(n)
			if !several {
				return n
			}
			if n.sent.err != nil && r.ctx.Err() != nil {
				o = engine.Outcome{Kind: engine.OutcomeCancelled}
			}
			d := *k.engine.SettleAttempt(k.client.now(), int(n.mark.number), o)
			k.note(&d)
			if !d.Pending {
				k.decided = &d
				return n
			}
			r.goal.free(n)
		}
	}
}

// free has the connection of an attempt that failed used again, as that of one before a retry:
// its answer is read, beside the race.
func (g *goal) free(n *entrant) {
	if n.sent.resp == nil {
		n.sent.discard()
		return
	}
	go func() {
		defer func() {
			if n.panicked = recover(); n.panicked != nil {
				g.lose(n)
			}
		}()
		n.sent.hold()
		n.sent.discard()
	}()
}

// hedge sends another attempt, if the engine lets it.
func (r *race) hedge(k *call, launch launcher) bool {
	if r.body.Prepare(r.ctx) != nil {
		return false
	}
	d := k.engine.Hedge(k.client.now())
	if k.note(d); !d.Proceed {
		r.body.Spare()
		return false
	}
	m := &mark{Context: r.ctx, config: k.inherited, of: k.record, number: few(k.engine.Attempts()), hedge: true}
	k.starts(m)
	r.start(m, launch)
	return true
}

func (r *race) start(m *mark, launch launcher) {
	ctx, cancel := context.WithCancel(r.ctx)
	m.Context = ctx
	send, n := launch(m)
	n.mark, n.cancel = m, cancel
	r.live = append(r.live, n)
	goal := r.goal
	go func() {
		defer func() {
			if !n.done {
				n.panicked = recover()
			}
			goal.arrive(n)
		}()
		send()
		n.done = true
	}()
}

// arrive hands an attempt that is over to the caller, or throws it away.
func (g *goal) arrive(n *entrant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.arrived <- n
		return
	}
	g.lose(n)
}

func (g *goal) lose(n *entrant) {
	if n.panicked != nil {
		g.log.Error("an attempt that was no longer wanted panicked", "endpoint", g.name, "panic", state.Printable(n.panicked))
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
	g := r.goal
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	for _, n := range r.live {
		n.cancel()
	}
	for {
		select {
		case n := <-g.arrived:
			g.lose(n)
		default:
			return
		}
	}
}

// race makes an attempt over HTTP and hedges beside it.
func (x *exchange) race(ctx context.Context, m *mark, body io.ReadCloser, after time.Duration) sent {
	r := race{ctx: ctx, body: x.body}
	base := x.base
	launch := func(m *mark) (func(), *entrant) { //nolint:contextcheck // m is ctx
		n := &entrant{}
		if m.hedge {
			body = x.body.Next()
		}
		own := m.Context
		x.arm(own, m, &n.sent)
		n.sent.req = x.request(m, body)
		return func() { n.sent.trip(own, base) }, n
	}
	return r.run(&x.call, m, after, launch, func(n *entrant) engine.Outcome { return x.judge(&n.sent) }).sent
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
	c := race{ctx: ctx}
	launch := func(m *mark) (func(), *entrant) { //nolint:contextcheck // m is ctx
		n := &entrant{}
		own := m.Context
		r.open(own, m, response, &n.sent)
		return func() {
			v, err := fn(m) //nolint:contextcheck // m is ctx
			n.value = v
			n.sent.shut(own, m, v, err)
		}, n
	}
	n := c.run(&r.call, m, after, launch, func(n *entrant) engine.Outcome {
		r.sent = n.sent
		return r.judge()
	})
	r.sent = n.sent
	v, _ := n.value.(T)
	return v
}
