// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
)

// namespace of everything in the demo.
const namespace = "shop"

// services are the callers and how many instances each has.
var services = []struct { //nolint:gochecknoglobals // a table
	name      string
	instances int
}{{"checkout", 8}, {"cart", 6}, {"mobile-bff", 6}}

// calls are what an instance does, in proportion of their weight.
var calls = []struct { //nolint:gochecknoglobals // a table
	method, url string
	keyed       bool
	weight      int
}{
	{http.MethodGet, "http://catalog.shop/v1/items/%d", false, 6},
	{http.MethodGet, "http://payments.shop/v1/charges/%d", false, 3},
	{http.MethodPost, "http://payments.shop/v1/charges", true, 1},
}

// instance is one process of a service, as far as policyd can tell.
type instance struct {
	name, service string
	restart       chan chan error
	client        atomic.Pointer[policyd.Client]
	ok, failed    atomic.Int64
}

type fleet struct {
	cfg       Config
	backend   string
	instances []*instance
	stopOnce  context.CancelFunc
	running   sync.WaitGroup
}

func startFleet(ctx context.Context, cfg Config, backend string) (*fleet, error) {
	ctx, stop := context.WithCancel(ctx)
	f := &fleet{cfg: cfg, backend: backend, stopOnce: stop}
	for _, s := range services {
		for i := 1; i <= s.instances; i++ {
			f.instances = append(f.instances, &instance{name: fmt.Sprintf("%s-%d", s.name, i), service: s.name, restart: make(chan chan error)})
		}
	}
	for _, in := range f.instances {
		client, err := f.newClient(in)
		if err != nil {
			f.stop()
			return nil, fmt.Errorf("start instance %s: %w", in.name, err)
		}
		f.running.Add(1)
		go f.live(ctx, in, client)
	}
	return f, nil
}

func (f *fleet) newClient(in *instance) (*policyd.Client, error) {
	c, err := policyd.New(
		policyd.WithAddr(f.cfg.Policyd),
		policyd.WithService(namespace, in.service),
		policyd.WithInstance(in.name),
		policyd.WithCacheDir(f.cfg.CacheDir+"/"+in.name),
		policyd.WithLogger(slog.New(slog.DiscardHandler)),
	)
	if err == nil {
		in.client.Store(c)
	}
	return c, err
}

// live is the life of one instance: traffic, and now and then a restart.
func (f *fleet) live(ctx context.Context, in *instance, client *policyd.Client) {
	defer f.running.Done()
	for {
		life, end := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); f.traffic(life, in, client) }()
		var answer chan error
		select {
		case <-ctx.Done():
		case answer = <-in.restart:
		}
		end()
		<-done
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_ = client.Close(closeCtx)
		cancel()
		if answer == nil {
			return
		}
		next, err := f.newClient(in)
		answer <- err
		if err != nil {
			return
		}
		client = next
	}
}

// traffic makes calls at random times until ctx ends, each in a goroutine of its own, as a
// server's handlers would.
func (f *fleet) traffic(ctx context.Context, in *instance, client *policyd.Client) {
	dialer := &net.Dialer{Timeout: time.Second}
	base := &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, f.backend)
		},
	}
	defer base.CloseIdleConnections()
	httpClient := &http.Client{Transport: client.Transport(base), Timeout: 10 * time.Second}
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	for {
		timer := time.NewTimer(time.Duration(rand.ExpFloat64() / f.cfg.CallsPerSecond * float64(time.Second)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		inFlight.Add(1)
		go func() {
			defer inFlight.Done()
			if err := call(ctx, httpClient); err != nil {
				in.failed.Add(1)
			} else {
				in.ok.Add(1)
			}
		}()
	}
}

func call(ctx context.Context, client *http.Client) error {
	pick, total := 0, 0
	for _, c := range calls {
		total += c.weight
	}
	for n := rand.IntN(total); n >= calls[pick].weight; pick++ {
		n -= calls[pick].weight
	}
	c := calls[pick]
	url, body := c.url, io.Reader(nil)
	if c.method == http.MethodPost {
		body = strings.NewReader(`{"amount":1}`)
	} else {
		url = fmt.Sprintf(url, rand.IntN(1000))
	}
	id := fmt.Sprintf("%016x", rand.Uint64())
	if c.keyed {
		ctx = policyd.WithCall(ctx, policyd.IdempotencyKey(id))
	}
	req, err := http.NewRequestWithContext(ctx, c.method, url, body)
	if err != nil {
		return err
	}
	req.Header.Set(callHeader, id)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode >= 500 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

var errNoInstance = errors.New("no such instance")

// restartInstance ends an instance as a process would end, and starts it anew.
func (f *fleet) restartInstance(ctx context.Context, name string) error {
	for _, in := range f.instances {
		if in.name != name {
			continue
		}
		answer := make(chan error, 1)
		select {
		case in.restart <- answer:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case err := <-answer:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errNoInstance
}

// abandoned is closed when no instance has had a link to policyd for the given time.
func (f *fleet) abandoned(ctx context.Context, after time.Duration) <-chan struct{} {
	done := make(chan struct{})
	if after <= 0 {
		return done
	}
	go func() {
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		seen := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			for _, in := range f.instances {
				switch in.client.Load().Status().State {
				case policyd.StateLive, policyd.StateRejected:
					seen = time.Now()
				default:
				}
			}
			if time.Since(seen) > after {
				close(done)
				return
			}
		}
	}()
	return done
}

func (f *fleet) stop() {
	f.stopOnce()
	f.running.Wait()
}
