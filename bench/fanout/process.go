// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"
)

// child is a process of this program that answers lines with JSON.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func spawn(j job) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self, "-child", string(text))}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReaderSize(out, 1<<20)
	return c, c.cmd.Start()
}

func (c *child) ask(what string, answer any) error {
	if what != "" {
		if _, err := fmt.Fprintln(c.in, what); err != nil {
			return fmt.Errorf("ask %q: %w", what, err)
		}
	}
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("ask %q: %w", what, err)
	}
	return json.Unmarshal(line, answer)
}

// kill ends the child without a word.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	c.stop()
}

// stop lets the child end by itself, which it does when its input ends.
func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

func answer(v any) { _ = json.NewEncoder(os.Stdout).Encode(v) }

// answerAll answers each line with what f returns, until there are no more.
func answerAll(f func(words []string) (any, error)) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		v, err := f(strings.Fields(in.Text()))
		if err != nil {
			return fmt.Errorf("%s: %w", in.Text(), err)
		}
		answer(v)
	}
	return in.Err()
}

// profile writes a CPU profile of this process from now until stop; without a prefix none.
func profile(prefix, system string) (stop func(), err error) {
	if prefix == "" {
		return func() {}, nil
	}
	out, err := os.Create(prefix + system + ".pprof")
	if err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); _ = out.Close() }, pprof.StartCPUProfile(out)
}

// openFiles is how many files a process may have open. Go has raised the soft limit already.
func openFiles() (int, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	return int(l.Cur), nil
}

// cpuTime is what this process has used so far.
func cpuTime() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, err
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}

// memory is what of a process is resident, in bytes.
type memory struct {
	Now  int64 // as it stands
	Held int64 // after a collection, with free memory given back
}

func memoryUsed() (m memory, err error) {
	if m.Now, err = statusBytes("VmRSS:"); err != nil {
		return m, err
	}
	debug.FreeOSMemory()
	m.Held, err = statusBytes("VmRSS:")
	return m, err
}

func peak() (int64, error) { return statusBytes("VmHWM:") }

func statusBytes(key string) (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			var kb int64
			_, err := fmt.Sscan(rest, &kb)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in /proc/self/status", key)
}
