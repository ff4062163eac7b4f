// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is a program that is killed, stopped and started again at one address.
type process struct {
	name string
	log  string // path; every life of the process appends to it
	make func() *exec.Cmd
	// pipes, if not nil, serves standard input and output of each life, until output ends.
	pipes func(in io.WriteCloser, out io.Reader)

	mu      sync.Mutex
	cmd     *exec.Cmd
	done    chan struct{}
	stopped bool
}

func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return nil
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := p.make()
	cmd.Stderr = log
	var in io.WriteCloser
	var out io.Reader
	if p.pipes != nil {
		if in, err = cmd.StdinPipe(); err != nil {
			return err
		}
		if out, err = cmd.StdoutPipe(); err != nil {
			return err
		}
	} else {
		cmd.Stdout = log
	}
	// A test that is killed must not leave its processes behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done, p.stopped = cmd, done, false
	go func() {
		if p.pipes != nil {
			p.pipes(in, out)
		}
		_ = cmd.Wait()
		close(done)
	}()
	return nil
}

func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(s)
		p.stopped = s == syscall.SIGSTOP
	}
}

// kill ends the process as a crash does; it can be started again.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	p.reap()
}

func (p *process) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		<-p.done
		p.cmd = nil
	}
}

// ended reports whether a process that nobody killed has ended all the same.
func (p *process) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// finish asks the process to end and reports whether it did within a time.
func (p *process) finish(within time.Duration) bool {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return true
	}
	select {
	case <-done:
		p.reap()
		return true
	case <-time.After(within):
		p.kill()
		return false
	}
}

// freeAddr returns an address on a host that only this test uses.
func freeAddr(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
