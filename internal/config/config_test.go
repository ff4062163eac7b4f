// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/config"
	"github.com/policyd/policyd/internal/fault"
)

func noEnv(string) string { return "" }

func TestLoad_flag_beats_environment_beats_file_beats_default(t *testing.T) {
	path := write(t, "listen:\n  grpc: 127.0.0.1:1\n  http: 127.0.0.1:2\nlog: {level: warn}\n")
	env := func(k string) string {
		return map[string]string{"POLICYD_HTTP_ADDR": "127.0.0.1:3", "POLICYD_LOG_LEVEL": "error"}[k]
	}
	c, origins, err := config.Load(path, env, map[string]string{"log-level": "debug"})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1", c.Listen.GRPC)
	require.Equal(t, "127.0.0.1:3", c.Listen.HTTP)
	require.Equal(t, "debug", c.Log.Level)
	require.Equal(t, "text", c.Log.Format)
	require.Equal(t, config.Origins{"listen.grpc": path, "listen.http": "environment", "log.level": "flag", "log.format": "default"},
		config.Origins{"listen.grpc": origins["listen.grpc"], "listen.http": origins["listen.http"], "log.level": origins["log.level"], "log.format": origins["log.format"]})
}

func TestLoad_every_setting_can_be_set_in_all_three_ways(t *testing.T) {
	samples := map[string]string{
		"grpc-addr": "[::1]:1", "http-addr": "localhost:1", "data-dir": "d", "quota-mib": "64", "etcd-endpoints": "a:1,b:2",
		"etcd-ca-file": "ca", "etcd-cert-file": "c", "etcd-key-file": "k", "etcd-user": "u", "etcd-password-file": "p",
		"outbox-max": "200", "upstream": "c:1,d:2", "upstream-ca-file": "uca", "upstream-cert-file": "uc", "upstream-key-file": "uk", "upstream-token-file": "ut",
		"max-streams": "5", "accept-per-second": "6", "reconnect-window": "7s", "new-epoch": "true", "watch-transport": "lean", "log-level": "warn", "log-format": "json",
	}
	env := map[string]string{}
	for _, s := range config.Settings() {
		require.Contains(t, samples, s.Flag)
		env[s.Env()] = samples[s.Flag]
	}
	byFlag, _, err := config.Load("", noEnv, samples)
	require.NoError(t, err)
	byEnv, _, err := config.Load("", func(k string) string { return env[k] }, nil)
	require.NoError(t, err)
	require.Equal(t, byFlag, byEnv)
	require.Equal(t, 7*time.Second, byFlag.Push.ReconnectWindow)
	for _, s := range config.Settings() {
		require.Equal(t, samples[s.Flag], s.Value(byFlag), s.Key)
	}
}

func TestLoad_refuses(t *testing.T) {
	cases := map[string]struct {
		file  string
		flags map[string]string
		want  string
	}{
		"an unknown key, with its position":    {file: "listen:\n  grcp: x\n", want: ":2:3: unknown key listen.grcp"},
		"a key that is set twice":              {file: "log.level: info\nlog: {level: warn}\n", want: "is set twice"},
		"a file that is no mapping":            {file: "- a\n", want: "not a mapping"},
		"an address that other machines reach": {flags: map[string]string{"grpc-addr": "0.0.0.0:7400"}, want: "not a loopback address"},
		"an address with no host":              {flags: map[string]string{"http-addr": ":7480"}, want: "not a loopback address"},
		"a host name that is not localhost":    {flags: map[string]string{"http-addr": "policyd.prod:7480"}, want: "not a loopback address"},
		"a number out of range":                {flags: map[string]string{"max-streams": "0"}, want: "not a number from 1"},
		"a duration without unit":              {flags: map[string]string{"reconnect-window": "10"}, want: "duration with a unit"},
		"half a client certificate":            {flags: map[string]string{"etcd-cert-file": "c"}, want: "both or none"},
		"an unknown log level":                 {flags: map[string]string{"log-level": "loud"}, want: "unknown level"},
		"an unknown transport":                 {flags: map[string]string{"watch-transport": "quic"}, want: "unknown transport"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := ""
			if tc.file != "" {
				path = write(t, tc.file)
			}
			_, _, err := config.Load(path, noEnv, tc.flags)
			require.ErrorContains(t, err, tc.want)
			require.Equal(t, fault.Invalid, fault.KindOf(err))
		})
	}
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policyd.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
