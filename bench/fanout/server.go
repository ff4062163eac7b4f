// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/push"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// mark stands before the time of commit in a document that is measured.
const mark = "committed-at="

const markDigits = 20

// payload is a document of about size bytes that carries the time of its commit.
func payload(at time.Time, size int) string {
	text := fmt.Sprintf("%s%0*d", mark, markDigits, at.UnixNano())
	return text + strings.Repeat("x", max(size-len(text), 0))
}

func serve(system string, o options) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var change func()
	if system == floor {
		change = serveRaw(l, o)
	} else if change, err = servePolicyd(l, system, o); err != nil {
		return err
	}
	answer(l.Addr().String())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch in.Text() {
		case "usage":
			u, err := used()
			if err != nil {
				return err
			}
			answer(u)
		case "change":
			change()
			answer(true)
		}
	}
	return in.Err()
}

func answer(v any) { _ = json.NewEncoder(os.Stdout).Encode(v) }

func used() (usage, error) {
	var u usage
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return u, err
	}
	u.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return u, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return u, err
	}
	u.RSS = resident * int64(os.Getpagesize())
	return u, nil
}

// serveRaw writes the same bytes to all connections, from two goroutines.
func serveRaw(l net.Listener, o options) (change func()) {
	var mu sync.Mutex
	var conns []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
	}()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		text := []byte(payload(time.Now(), o.Size))
		for half := range 2 {
			go func() {
				for i := half; i < len(conns); i += 2 {
					_, _ = conns[i].Write(text)
				}
			}()
		}
	}
}

func servePolicyd(l net.Listener, system string, o options) (change func(), err error) {
	h, err := push.New(push.Config{
		Fleet:  fleet.New(),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Limits: push.Limits{Streams: 50_000, AcceptRate: 50_000},
	})
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer(push.ServerOptions()...)
	h.Register(s)
	go func() { _ = s.Serve(l) }()
	go func() { _ = h.Run(context.Background()) }()

	var mu sync.Mutex
	revision := policy.Revision(1)
	publish := func(c policy.Change, m proto.Message) {
		mu.Lock()
		defer mu.Unlock()
		if c.Document, err = proto.Marshal(m); err != nil {
			panic(err)
		}
		revision++
		c.Revision = revision
		h.Publish(policy.Update{Epoch: "bench", Revision: revision, Changes: []policy.Change{c}})
	}
	edit := func(text string) {
		publish(policy.Change{Key: "policies/shop", Scope: "shop"},
			&policydv1.Policy{Scope: "shop", Spec: &policydv1.PolicySpec{Description: &text}})
	}
	h.Publish(policy.Update{Epoch: "bench", Revision: revision, Reset: true})
	edit(strings.Repeat("y", o.Size))
	if system != hubSwitch {
		return func() { edit(payload(time.Now(), o.Size)) }, nil
	}

	started := sync.OnceFunc(func() {
		go func() {
			for range time.Tick(10 * time.Millisecond) {
				edit(strings.Repeat("y", o.Size))
			}
		}()
	})
	return func() {
		started()
		publish(policy.Change{Key: "switches/ks", Scope: "shop", Urgent: true}, &policydv1.KillSwitch{
			Id: "ks", Spec: &policydv1.SwitchSpec{Scope: "shop", Reason: payload(time.Now(), o.Size)},
		})
	}, nil
}
