// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const (
	defaultAddr = "127.0.0.1:7400"
	defaultPort = "7400"
	dirFile     = ".policyctl.yaml"
)

// settings say which policyd to talk to, and where each setting comes from.
type settings struct {
	addr, addrFrom string
	// context names the environment; empty: it has no name.
	context     string
	contextFrom string
	critical    bool
}

// file is the content of a configuration file.
type file struct {
	Addr     string `yaml:"addr"`
	Context  string `yaml:"context"`
	Critical *bool  `yaml:"critical"`
}

// config resolves the settings: flag, then environment, then the file of this directory or
// a parent, then the user's file, then defaults.
func (a *app) config() (*settings, error) {
	if a.settings != nil {
		return a.settings, nil
	}
	s := &settings{addr: defaultAddr, addrFrom: "default"}
	paths := []string{a.userFile(), a.dirFile()}
	for _, path := range paths {
		if err := s.load(path); err != nil {
			return nil, err
		}
	}
	if v, ok := a.env.Lookup("POLICYCTL_CONTEXT"); ok && v != "" {
		s.context, s.contextFrom = v, "POLICYCTL_CONTEXT"
	}
	if a.global.addr != "" {
		s.addr, s.addrFrom = a.global.addr, "--addr"
		if a.fromEnv["addr"] {
			s.addrFrom = flagVariable("addr")
		}
	}
	addr, err := normalAddr(s.addr)
	if err != nil {
		return nil, usagef("address %q (from %s): %s", s.addr, s.addrFrom, err).hint("Give host:port, for example %s.", defaultAddr)
	}
	s.addr, a.settings = addr, s
	return s, nil
}

// addr for messages; the default if settings cannot be read.
func (a *app) addr() string {
	if s, err := a.config(); err == nil {
		return s.addr
	}
	return defaultAddr
}

func normalAddr(addr string) (string, error) {
	if strings.Contains(addr, "://") || strings.ContainsAny(addr, "/ ") {
		return "", errors.New("this is not host:port")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		if strings.Count(addr, ":") > 1 && !strings.HasPrefix(addr, "[") {
			addr = "[" + addr + "]"
		}
		host, port, err = net.SplitHostPort(addr + ":" + defaultPort)
	}
	if err != nil || port == "" {
		return "", errors.New("this is not host:port")
	}
	return net.JoinHostPort(host, port), nil
}

func (s *settings) load(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return usagef("read configuration: %s", err)
	}
	var f file
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		message := strings.TrimPrefix(err.Error(), "yaml: ")
		message = strings.TrimPrefix(message, "unmarshal errors:\n  ")
		message = strings.ReplaceAll(message, " in type ctl.file", "")
		return usagef("%s: %s", path, message).hint("Keys are addr, context and critical.")
	}
	if f.Addr != "" {
		s.addr, s.addrFrom = f.Addr, path
	}
	if f.Context != "" {
		s.context, s.contextFrom = f.Context, path
	}
	if f.Critical != nil {
		s.critical = *f.Critical
	}
	return nil
}

func (a *app) userFile() string {
	dir, _ := a.env.Lookup("XDG_CONFIG_HOME")
	if dir == "" {
		home, _ := a.env.Lookup("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "policyctl", "config.yaml")
}

// dirFile returns the nearest file that pins a directory to a context, "" if there is none.
func (a *app) dirFile() string {
	for dir := a.env.Dir; dir != ""; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, dirFile)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return ""
}

// name is how the environment is called in what we print: its name, else its address.
func (s *settings) name() string {
	name := s.context
	if name == "" {
		name = s.addr
	}
	if s.critical {
		name += " ▲ critical"
	}
	return name
}

// flagsFromEnv sets the flags that were not given and have a variable: POLICYCTL_ and the
// flag's name in upper case with underscores.
func (a *app) flagsFromEnv(flags *pflag.FlagSet) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || failed != nil {
			return
		}
		name := flagVariable(f.Name)
		v, ok := a.env.Lookup(name)
		if !ok || v == "" {
			return
		}
		if err := flags.Set(f.Name, v); err != nil {
			failed = usagef("%s=%s: %s", name, v, lastPart(err.Error()))
		}
		a.fromEnv[f.Name] = true
	})
	return failed
}

func flagVariable(flag string) string {
	return "POLICYCTL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// lastPart of an error of the flag parser is the reason.
func lastPart(message string) string {
	if i := strings.LastIndex(message, "flag: "); i >= 0 {
		return message[i+len("flag: "):]
	}
	return message
}
