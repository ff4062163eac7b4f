// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/policyd/policyd/internal/store"
)

// cluster is etcd with real sockets on loopback: members that can be stopped, started again,
// cut off from each other and from clients.
type cluster struct {
	members []*etcdMember
}

type etcdMember struct {
	cfg  *embed.Config
	etcd *embed.Etcd // nil while stopped
	// Other members come through peers, stores under test through clients, whoever else
	// writes through direct.
	peers, clients, direct *proxy
}

// hosts counts the loopback addresses given to members.
var hosts atomic.Int64

// memberAddr returns an address that stays free while a member is down: on Linux each member
// has an address of its own on loopback, where nobody else is given a port.
func memberAddr(t testing.TB) string {
	t.Helper()
	if n := hosts.Add(1); runtime.GOOS == "linux" {
		return freePort(t, fmt.Sprintf("127.77.%d.%d", n/250, 1+n%250))
	}
	return freePort(t, "127.0.0.1")
}

func freePort(t testing.TB, host string) string {
	t.Helper()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", host+":0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func parse(t testing.TB, address string) []url.URL {
	t.Helper()
	u, err := url.Parse("http://" + address)
	require.NoError(t, err)
	return []url.URL{*u}
}

func newCluster(t testing.TB, size int, change ...func(*embed.Config)) *cluster {
	t.Helper()
	c := &cluster{}
	var initial []string
	for i := range size {
		m := &etcdMember{cfg: embed.NewConfig()}
		peer, client := memberAddr(t), memberAddr(t)
		m.peers, m.clients, m.direct = newProxy(t, peer, true), newProxy(t, client, false), newProxy(t, client, false)
		m.cfg.Name = fmt.Sprintf("m%d", i)
		m.cfg.Dir = t.TempDir()
		m.cfg.ListenPeerUrls, m.cfg.AdvertisePeerUrls = parse(t, peer), parse(t, m.peers.addr())
		m.cfg.ListenClientUrls, m.cfg.AdvertiseClientUrls = parse(t, client), parse(t, m.clients.addr())
		m.cfg.TickMs, m.cfg.ElectionMs = 50, 500
		m.cfg.InitialClusterToken = t.Name()
		m.cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		initial = append(initial, m.cfg.Name+"=http://"+m.peers.addr())
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		m.cfg.InitialCluster = strings.Join(initial, ",")
		for _, f := range change {
			f(m.cfg)
		}
		m.boot(t)
		t.Cleanup(m.stop)
	}
	for _, m := range c.members {
		m.ready(t)
	}
	return c
}

func (m *etcdMember) boot(t testing.TB) {
	t.Helper()
	etcd, err := embed.StartEtcd(m.cfg)
	require.NoError(t, err)
	m.etcd = etcd
}

func (m *etcdMember) ready(t testing.TB) {
	t.Helper()
	select {
	case <-m.etcd.Server.ReadyNotify():
	case err := <-m.etcd.Err():
		require.NoError(t, err)
	case <-t.Context().Done():
		require.NoError(t, t.Context().Err())
	}
}

func (m *etcdMember) start(t testing.TB) {
	t.Helper()
	m.boot(t)
	m.ready(t)
}

// stop ends the member without handing over, as a crash would.
func (m *etcdMember) stop() {
	if m.etcd == nil {
		return
	}
	m.etcd.Server.HardStop()
	// etcd waits for the streams of its clients, which a crash does not.
	for _, p := range []*proxy{m.clients, m.direct} {
		defer p.set(p.now())
		p.set(refuse)
	}
	m.etcd.Close()
	m.etcd = nil
}

func (m *etcdMember) id() string { return m.etcd.Server.MemberID().String() }

// isolate cuts member i off from the others, or lets it back; clients still reach it.
func (c *cluster) isolate(i int, cut bool) {
	for j, m := range c.members {
		if j == i {
			for k, other := range c.members {
				if k != i {
					m.peers.ban(other.id(), cut)
				}
			}
		} else {
			m.peers.ban(c.members[i].id(), cut)
		}
	}
}

// leader returns the index of the leader.
func (c *cluster) leader(t testing.TB) int {
	t.Helper()
	leader := -1
	require.Eventually(t, func() bool {
		for i, m := range c.members {
			if m.etcd != nil && m.etcd.Server.Leader() == m.etcd.Server.MemberID() {
				leader = i
				return true
			}
		}
		return false
	}, 20*time.Second, 10*time.Millisecond)
	return leader
}

// through are the endpoints as a store uses them, direct those of whoever else writes.
func (c *cluster) through() (endpoints []string) {
	for _, m := range c.members {
		endpoints = append(endpoints, "http://"+m.clients.addr())
	}
	return endpoints
}

func (c *cluster) direct() (endpoints []string) {
	for _, m := range c.members {
		endpoints = append(endpoints, "http://"+m.direct.addr())
	}
	return endpoints
}

// links sets how clients reach the members.
func (c *cluster) links(mode proxyMode) {
	for _, m := range c.members {
		m.clients.set(mode)
	}
}

func open(t testing.TB, cfg store.External) *clientv3.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client, err := store.Open(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// otherMember returns an index that is not i.
func (c *cluster) otherMember(i int) int { return (i + 1) % len(c.members) }
