// SPDX-License-Identifier: Apache-2.0

// Package lean serves long, quiet gRPC streams over HTTP/2 at the price of little more than
// a TCP connection: one goroutine that waits in a read, no buffer while nothing comes, and
// writes made by whoever sends. It serves the streaming methods registered with it; a
// connection that starts with any other call is handed to an ordinary gRPC server, with the
// bytes read so far.
package lean

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

// Config of a Server. Codec and Logger are required.
type Config struct {
	// Codec encodes what is sent. Bytes that it returns are shared, not copied.
	Codec  encoding.CodecV2
	Logger *slog.Logger
	Limits Limits
}

// Limits of a Server. A zero field takes its default.
type Limits struct {
	// Message is the size of the largest message that a client may send; default 1 MiB.
	Message int
	// Streams at once on one connection; default 100.
	Streams int
	// Preface is how long a client may take to speak HTTP/2; default 20s. Decide is how long
	// it may then take to its first call before it is handed over; default 3s.
	Preface, Decide time.Duration
	// Idle is the silence after which a client is pinged, PingTimeout how long it may take
	// to say anything then; defaults 60s and 20s.
	Idle, PingTimeout time.Duration
	// MinPing is the least time between two pings of a client; default 10s.
	MinPing time.Duration
	// Linger is how long the end of a stream waits behind data that the client does not
	// take; default 30s.
	Linger time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Message = cmp.Or(l.Message, 1<<20)
	l.Streams = cmp.Or(l.Streams, 100)
	l.Preface = cmp.Or(l.Preface, 20*time.Second)
	l.Decide = cmp.Or(l.Decide, 3*time.Second)
	l.Idle = cmp.Or(l.Idle, time.Minute)
	l.PingTimeout = cmp.Or(l.PingTimeout, 20*time.Second)
	l.MinPing = cmp.Or(l.MinPing, 10*time.Second)
	l.Linger = cmp.Or(l.Linger, 30*time.Second)
	return l
}

// Server serves streams. All methods but RegisterService are safe for concurrent use.
type Server struct {
	// set before Serve, read-only
	codec   encoding.CodecV2
	log     *slog.Logger
	limits  Limits
	start   time.Time
	methods map[string]grpc.StreamHandler // by path
	greet   []byte                        // the first frame of every connection
	head    []byte                        // the headers of most responses

	others  *others
	inputs  sync.Pool // *input
	outputs sync.Pool // *output

	running sync.WaitGroup // goroutines of connections

	// mu guards the fields below.
	mu       sync.Mutex
	listener net.Listener
	conns    map[*conn]struct{}
	stopping bool
	emptied  chan struct{} // closed with the last connection once it is stopping
}

// New returns a Server without methods.
func New(cfg Config) (*Server, error) {
	if cfg.Codec == nil || cfg.Logger == nil {
		return nil, errors.New("lean: Codec and Logger are required")
	}
	s := &Server{
		codec: cfg.Codec, log: cfg.Logger, limits: cfg.Limits.withDefaults(), start: time.Now(),
		methods: make(map[string]grpc.StreamHandler),
		others:  newOthers(),
		conns:   make(map[*conn]struct{}),
		emptied: make(chan struct{}),
	}
	s.inputs.New = func() any { return newInput() }
	s.outputs.New = func() any { return new(output) }
	var greet bytes.Buffer
	// Without a dynamic table nothing of a client's headers has to be remembered.
	_ = http2.NewFramer(&greet, nil).WriteSettings( // a buffer takes everything
		http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0},
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(s.limits.Streams)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderList},
	)
	s.greet = greet.Bytes()
	head := newHeaderBlock()
	head.start(http.StatusOK)
	s.head = head.buf.Bytes()
	return s, nil
}

// RegisterService takes the streaming methods of a service; its other methods are left to the
// ordinary server. It must be called before Serve.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for i := range desc.Streams {
		handler := desc.Streams[i].Handler
		s.methods["/"+desc.ServiceName+"/"+desc.Streams[i].StreamName] = func(_ any, stream grpc.ServerStream) error {
			return handler(impl, stream)
		}
	}
}

// Others returns where connections come out that do not start with a call of a registered
// method. Somebody has to accept them.
func (s *Server) Others() net.Listener { return s.others }

// Serve accepts connections until Shutdown or Close. It closes l.
func (s *Server) Serve(l net.Listener) error {
	defer func() { _ = l.Close() }() // stop may have been first
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return nil
	}
	s.listener = l
	s.mu.Unlock()
	for pause := time.Duration(0); ; {
		nc, err := l.Accept()
		if err == nil {
			pause = 0
			s.welcome(nc)
			continue
		}
		if s.isStopping() {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept: %w", err)
		}
		// Most often there are no files left, and some will be.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.log.Warn("connection not accepted", "error", err, "retry_in", pause)
		select {
		case <-time.After(pause):
		case <-s.others.done:
		}
	}
}

func (s *Server) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

func (s *Server) welcome(nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		_ = nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.running.Go(c.start)
}

// forget is the counterpart of welcome.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	if s.stopping && len(s.conns) == 0 {
		close(s.emptied)
	}
}

// Shutdown accepts nothing more, tells clients to go elsewhere, and returns when all streams
// have ended and all handlers returned. When ctx is done first, it cuts the rest.
func (s *Server) Shutdown(ctx context.Context) {
	for _, c := range s.stop() {
		c.leave()
	}
	select {
	case <-s.emptied:
	case <-ctx.Done():
	}
	s.Close()
}

// Close cuts all connections and returns when all handlers did.
func (s *Server) Close() {
	for _, c := range s.stop() {
		c.kill(errStopping())
	}
	_ = s.others.Close()
	s.running.Wait()
}

// stop refuses new connections and returns those that there are.
func (s *Server) stop() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.stopping = true
		if s.listener != nil {
			_ = s.listener.Close()
		}
		if len(s.conns) == 0 {
			close(s.emptied)
		}
	}
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}

// now is the time on the Server's own monotonic line.
func (s *Server) now() time.Duration { return time.Since(s.start) }
