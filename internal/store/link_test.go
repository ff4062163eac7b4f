// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// link is a client of the embedded etcd that can be cut, and whose watches can be made to
// fail in other ways.
type link struct {
	client *clientv3.Client

	mu      sync.Mutex
	broken  bool
	watches int                        // opened so far
	ends    map[int]context.CancelFunc // of the watches that are open
	filter  func(*clientv3.Event) bool // false: the event is lost
	muted   bool                       // watches say nothing, reads go on
	// Called with mu held around each conditional write. An error of before stops the write
	// on its way, one of answer loses what etcd said.
	before func(send func() (*clientv3.TxnResponse, error)) error
	answer func(*clientv3.TxnResponse) error
}

func newLink(to *clientv3.Client) *link {
	l := &link{ends: make(map[int]context.CancelFunc)}
	l.client = clientv3.NewCtxClient(to.Ctx())
	l.client.KV = &linkKV{KV: to.KV, link: l}
	l.client.Watcher = &linkWatcher{Watcher: to.Watcher, link: l}
	return l
}

// set changes how the link behaves.
func (l *link) set(f func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

func (l *link) cut() {
	l.set(func(l *link) {
		l.broken = true
		for _, end := range l.ends {
			end()
		}
	})
}

func (l *link) restore() { l.set(func(l *link) { l.broken = false }) }

// open returns how many watches are open and how many ever were.
func (l *link) open() (now, ever int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ends), l.watches
}

func (l *link) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return rpctypes.ErrTimeout
	}
	return nil
}

type linkKV struct {
	clientv3.KV
	link *link
}

func (k *linkKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if err := k.link.err(); err != nil {
		return nil, err
	}
	return k.KV.Get(ctx, key, opts...)
}

func (k *linkKV) Txn(ctx context.Context) clientv3.Txn {
	k.link.mu.Lock()
	if k.link.before != nil {
		ctx = context.WithoutCancel(ctx) // it may be sent late
	}
	k.link.mu.Unlock()
	return &linkTxn{Txn: k.KV.Txn(ctx), link: k.link}
}

type linkTxn struct {
	clientv3.Txn
	link  *link
	write bool
}

func (x *linkTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	x.Txn, x.write = x.Txn.If(cs...), true
	return x
}

func (x *linkTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	x.Txn = x.Txn.Then(ops...)
	return x
}

func (x *linkTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	x.Txn = x.Txn.Else(ops...)
	return x
}

func (x *linkTxn) Commit() (*clientv3.TxnResponse, error) {
	if err := x.link.err(); err != nil {
		return nil, err
	}
	x.link.mu.Lock()
	defer x.link.mu.Unlock()
	if x.write && x.link.before != nil {
		if err := x.link.before(x.Txn.Commit); err != nil {
			return nil, err
		}
	}
	answer, err := x.Txn.Commit()
	if err == nil && x.write && x.link.answer != nil {
		if err := x.link.answer(answer); err != nil {
			return nil, err
		}
	}
	return answer, err
}

type linkWatcher struct {
	clientv3.Watcher
	link *link
}

// Watch passes the responses of the real watch on, less what the link swallows.
func (w *linkWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	l := w.link
	out := make(chan clientv3.WatchResponse)
	ctx, end := context.WithCancel(ctx)
	l.mu.Lock()
	id := l.watches
	l.watches++
	l.ends[id] = end
	broken := l.broken
	l.mu.Unlock()
	if broken {
		end()
	}
	in := w.Watcher.Watch(ctx, key, opts...)
	go func() {
		defer close(out)
		defer func() {
			end()
			l.set(func(l *link) { delete(l.ends, id) })
		}()
		for response := range in {
			if l.swallow(&response) {
				continue
			}
			select {
			case out <- response:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (l *link) swallow(response *clientv3.WatchResponse) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.filter != nil {
		var kept []*clientv3.Event
		for _, e := range response.Events {
			if l.filter(e) {
				kept = append(kept, e)
			}
		}
		if len(response.Events) > 0 && len(kept) == 0 {
			return true
		}
		response.Events = kept
	}
	return l.muted
}
