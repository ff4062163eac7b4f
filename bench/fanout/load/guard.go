// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	"github.com/policyd/policyd/sdk/go/wire"
)

// guarded is the endpoint that each instance calls.
const guarded engine.Scope = "shop/payments/charge"

// guard is what an instance does with a document besides holding it: decode, check, merge,
// compile, and put it in force for an endpoint that is live.
type guard struct {
	origin   time.Time
	endpoint *engine.Endpoint
}

func newGuard() *guard {
	g := &guard{origin: time.Now()}
	p := engine.Compile(engine.Merge(guarded, nil))
	g.endpoint = engine.NewEndpoint(engine.Config{Origin: g.origin, Random: rand.Uint64}, &p, engine.Overlay{}, 0)
	return g
}

func (g *guard) apply(m []byte) error {
	var r policydv1.WatchResponse
	if err := proto.Unmarshal(m, &r); err != nil {
		return err
	}
	for _, e := range r.GetUpdate().GetEntries() {
		document, err := wire.Document(e.GetPolicy(), e.GetRevision())
		if err != nil {
			return err
		}
		if broken := engine.Validate(document.Scope, document.Settings); len(broken) > 0 {
			return fmt.Errorf("%s: %s", broken[0].Path, broken[0].Rule)
		}
		p := engine.Compile(engine.Merge(guarded, []engine.Document{document}))
		g.endpoint.Reload(&p, engine.Overlay{}, engine.ModeEnforce, engine.Instant(time.Since(g.origin)))
	}
	return nil
}
