// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"time"

	"github.com/policyd/policyd/bench/fanout/payload"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Dialect is what an instance says to a system.
type Dialect struct {
	path string
	// hello is the first message.
	hello func(in *instance, resume bool) []byte
	// take answers a message, which arrived a moment ago.
	take func(in *instance, m []byte) error
}

// point is what an instance of policyd holds.
type point struct {
	epoch    string
	revision uint64
	hash     uint64
	within   time.Duration // for confirming it
}

// Watch is policyd's protocol.
func Watch() *Dialect {
	return &Dialect{
		path: policydv1.WatchService_Watch_FullMethodName,
		hello: func(in *instance, resume bool) []byte {
			h := &policydv1.Hello{
				Instance: fmt.Sprint("instance-", in.id), Namespace: payload.Scope, Service: "checkout",
				SdkLanguage: "go", SdkVersion: "1.0.0",
			}
			if resume {
				h.Resume = &policydv1.ResumePoint{Epoch: in.point.epoch, Revision: int64(in.point.revision), Hash: in.point.hash}
			}
			return payload.Encoded(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Hello{Hello: h}})
		},
		take: takeUpdate,
	}
}

// takeUpdate confirms an update.
func takeUpdate(in *instance, m []byte) error {
	field, _, n := protowire.ConsumeTag(m)
	if n < 0 {
		return protowire.ParseError(n)
	}
	if field != 1 {
		return nil // a heartbeat
	}
	body, n := protowire.ConsumeBytes(m[n:])
	if n < 0 {
		return protowire.ParseError(n)
	}
	in.served = true
	if err := in.point.read(body); err != nil {
		return err
	}
	if in.guard != nil {
		if err := in.guard.apply(m); err != nil {
			return err
		}
	}
	if at, ok := payload.Committed(m); ok && in.guard != nil {
		in.slot.inForce(at)
	}
	ack := policydv1.Ack{Epoch: in.point.epoch, Revision: int64(in.point.revision)}
	return in.confirm(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Ack{Ack: &ack}}, in.point.within)
}

// read takes the numbers of an Update.
func (p *point) read(body []byte) error {
	p.within = 0
	for len(body) > 0 {
		field, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return protowire.ParseError(n)
		}
		body = body[n:]
		switch field {
		case 1:
			var epoch []byte
			if epoch, n = protowire.ConsumeBytes(body); string(epoch) != p.epoch {
				p.epoch = string(epoch)
			}
		case 2:
			p.revision, n = protowire.ConsumeVarint(body)
		case 3:
			p.hash, n = protowire.ConsumeFixed64(body)
		case 8:
			var within []byte
			if within, n = protowire.ConsumeBytes(body); n >= 0 {
				var d durationpb.Duration
				if err := proto.Unmarshal(within, &d); err != nil {
					return err
				}
				p.within = d.AsDuration()
			}
		default:
			n = protowire.ConsumeFieldValue(field, kind, body)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		body = body[n:]
	}
	return nil
}

// Etcd is one watcher of the key.
func Etcd() *Dialect {
	return &Dialect{
		path: "/etcdserverpb.Watch/Watch",
		hello: func(*instance, bool) []byte {
			return payload.Encoded(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
				CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("policies/" + payload.Scope)},
			}})
		},
		// The first message says that the watch exists; events need no answer.
		take: func(in *instance, _ []byte) error { in.served = true; return nil },
	}
}

// ADS is a subscription to the resource.
func ADS() *Dialect {
	return &Dialect{
		path: discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName,
		hello: func(in *instance, _ bool) []byte {
			return payload.Encoded(&discoveryv3.DiscoveryRequest{
				Node:    &corev3.Node{Id: fmt.Sprint("instance-", in.id), Cluster: payload.Scope},
				TypeUrl: resourcev3.RuntimeType, ResourceNames: []string{payload.Scope},
			})
		},
		take: confirmADS,
	}
}

func confirmADS(in *instance, m []byte) error {
	in.served = true
	var version, nonce []byte
	for len(m) > 0 {
		field, kind, n := protowire.ConsumeTag(m)
		if n < 0 {
			return protowire.ParseError(n)
		}
		m = m[n:]
		switch field {
		case 1:
			version, n = protowire.ConsumeBytes(m)
		case 5:
			nonce, n = protowire.ConsumeBytes(m)
		default:
			n = protowire.ConsumeFieldValue(field, kind, m)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		m = m[n:]
	}
	return in.say(&discoveryv3.DiscoveryRequest{
		TypeUrl: resourcev3.RuntimeType, ResourceNames: []string{payload.Scope},
		VersionInfo: string(version), ResponseNonce: string(nonce),
	})
}
