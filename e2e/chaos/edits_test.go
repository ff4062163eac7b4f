// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// operator makes random edits through random replicas and keeps what it was told.
type operator struct {
	w *world
	// pause is held by edits and taken by whoever replaces the data.
	pause sync.RWMutex

	mu    sync.Mutex
	edits []*edit
	n     int
}

const (
	editEvery   = 60 * time.Millisecond
	editWithin  = 8 * time.Second
	editsAtOnce = 4
)

func scopes() []string {
	all := []string{"global"}
	for _, ns := range []string{"shop", "pay", "ads"} {
		all = append(all, ns)
		for s := 1; s <= 3; s++ {
			service := fmt.Sprintf("%s/s%d", ns, s)
			all = append(all, service)
			for e := 1; e <= 3; e++ {
				all = append(all, fmt.Sprintf("%s/e%d", service, e))
			}
		}
	}
	return all
}

// run edits until ctx ends; what was begun is finished.
func (o *operator) run(ctx context.Context, rng *rand.Rand) {
	slots := make(chan struct{}, editsAtOnce)
	var open sync.WaitGroup
	defer open.Wait()
	ticker := time.NewTicker(editEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		select {
		case slots <- struct{}{}:
		default:
			continue // all wait for a store that does not answer
		}
		mine := rand.New(rand.NewPCG(rng.Uint64(), 0))
		open.Go(func() {
			defer func() { <-slots }()
			o.pause.RLock()
			defer o.pause.RUnlock()
			o.one(mine)
		})
	}
}

func (o *operator) life() int {
	o.w.record.mu.Lock()
	defer o.w.record.mu.Unlock()
	return len(o.w.record.lives) - 1
}

// one makes an edit and keeps what came of it.
func (o *operator) one(rng *rand.Rand) {
	o.mu.Lock()
	o.n++
	e := &edit{n: o.n, reason: fmt.Sprintf("chaos-%06d", o.n), markers: map[string]int64{}, at: time.Now()}
	o.mu.Unlock()
	e.life = o.life()
	ctx, cancel := context.WithTimeout(context.Background(), editWithin)
	defer cancel()
	replica := rng.IntN(replicas)
	client := o.w.admin[replica]
	var err error
	switch n := rng.IntN(100); {
	case n < 50:
		err = o.apply(ctx, client, e, rng, 1)
	case n < 60:
		err = o.apply(ctx, client, e, rng, 2+rng.IntN(20))
	case n < 70:
		err = o.remove(ctx, client, e, rng)
	case n < 80:
		err = o.wrong(ctx, client, e, rng)
	case n < 90:
		err = o.start(ctx, client, e, rng)
	case n < 95:
		err = o.extend(ctx, client, e, rng)
	default:
		err = o.revert(ctx, client, e, rng)
	}
	if e.kind == "" {
		return // there was nothing to do it to
	}
	if err != nil {
		e.outcome, e.why = judge(err)
		e.detail = fmt.Sprintf("%s by policyd %d: %v", []string{"ok", "refused", "unknown", "unchanged"}[e.outcome], replica, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.edits = append(o.edits, e)
}

// judge says what an error promises. Only policyd itself can promise anything.
func judge(err error) (o outcome, why string) {
	s := status.Convert(err)
	for _, d := range s.Details() {
		detail, ok := d.(*policydv1.ErrorDetail)
		if !ok {
			continue
		}
		why := s.Code().String() + " " + detail.GetReason()
		said := []codes.Code{
			codes.Unavailable, codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound, codes.Aborted, codes.ResourceExhausted,
		}
		if slices.Contains(said, s.Code()) && detail.GetReason() != "outcome_unknown" {
			return refused, why
		}
		return unknown, why
	}
	return unknown, s.Code().String()
}

// marker is a backoff.base that no other edit of this run has.
func (o *operator) marker(e *edit, i int) time.Duration {
	return time.Millisecond + time.Duration(e.n*100+i)*time.Microsecond
}

func document(scope string, marker time.Duration, attempts int64) *policydv1.Policy {
	return &policydv1.Policy{Scope: scope, Spec: &policydv1.PolicySpec{
		MaxAttempts: &attempts,
		Backoff:     &policydv1.Backoff{Base: durationpb.New(marker), Max: durationpb.New(5 * time.Minute)},
	}}
}

func (o *operator) apply(ctx context.Context, client policydv1.AdminServiceClient, e *edit, rng *rand.Rand, n int) error {
	e.kind = "policy.apply"
	now := o.w.record.present()
	all := scopes()
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	in := &policydv1.ApplyPoliciesRequest{Reason: e.reason, Via: "chaos"}
	for i, scope := range all[:n] {
		key := "policies/" + scope
		expected, marker := now[key].revision, o.marker(e, i)
		e.markers[key] = int64(marker)
		in.Changes = append(in.Changes, &policydv1.PolicyChange{
			Policy: document(scope, marker, 1+rng.Int64N(4)), ExpectedRevision: &expected,
		})
	}
	out, err := client.ApplyPolicies(ctx, in)
	e.revision = out.GetRevision()
	return err
}

func (o *operator) remove(ctx context.Context, client policydv1.AdminServiceClient, e *edit, rng *rand.Rand) error {
	keys := o.keys(func(key string, _ live) bool { return strings.HasPrefix(key, "policies/") })
	if len(keys) == 0 {
		return nil
	}
	e.kind = "policy.delete"
	key := keys[rng.IntN(len(keys))]
	expected := o.w.record.present()[key].revision
	e.deleted = []string{key}
	scope := strings.TrimPrefix(key, "policies/")
	namespace, _, _ := strings.Cut(scope, "/")
	out, err := client.ApplyPolicies(ctx, &policydv1.ApplyPoliciesRequest{
		Deletions: []*policydv1.PolicyDeletion{{Scope: scope, ExpectedRevision: &expected}},
		Reason:    e.reason, Confirm: namespace, Via: "chaos",
	})
	e.revision = out.GetRevision()
	return err
}

// wrong asks for what must be refused: a value out of bounds in a batch, a revision that has
// passed, a new policy where there is one.
func (o *operator) wrong(ctx context.Context, client policydv1.AdminServiceClient, e *edit, rng *rand.Rand) error {
	keys := o.keys(func(key string, d live) bool { return strings.HasPrefix(key, "policies/") })
	if len(keys) < 2 {
		return nil
	}
	e.kind = "policy.apply"
	in := &policydv1.ApplyPoliciesRequest{Reason: e.reason, Via: "chaos"}
	now := o.w.record.present()
	for i, n := range rng.Perm(len(keys))[:2] {
		key, marker := keys[n], o.marker(e, i)
		e.markers[key] = int64(marker)
		expected := now[key].revision
		p := document(strings.TrimPrefix(key, "policies/"), marker, 2)
		if i == 1 {
			switch rng.IntN(3) {
			case 0:
				*p.Spec.MaxAttempts = 99
			case 1:
				expected--
			default:
				expected = 0
			}
		}
		in.Changes = append(in.Changes, &policydv1.PolicyChange{Policy: p, ExpectedRevision: &expected})
	}
	out, err := client.ApplyPolicies(ctx, in)
	e.revision = out.GetRevision()
	return err
}

func (o *operator) start(ctx context.Context, client policydv1.AdminServiceClient, e *edit, rng *rand.Rand) error {
	all := scopes()[1:]
	e.kind, e.switchID = "switch.start", fmt.Sprintf("ks-%06d", e.n)
	spec := &policydv1.SwitchSpec{
		Scope: all[rng.IntN(len(all))], Reason: e.reason,
		Restore: &policydv1.Restore{Over: durationpb.New(time.Duration(rng.IntN(3)) * time.Second)},
	}
	switch rng.IntN(3) {
	case 0:
		spec.Action = policydv1.SwitchAction_SWITCH_ACTION_DISABLE_RETRIES
	case 1:
		factor := 0.5
		spec.Action, spec.Factor = policydv1.SwitchAction_SWITCH_ACTION_TIGHTEN_BUDGET, &factor
	default:
		spec.Action = policydv1.SwitchAction_SWITCH_ACTION_FORCE_OPEN
	}
	if rng.IntN(4) == 0 {
		percent := 1 + rng.Int64N(99)
		spec.Percent = &percent
	}
	out, err := client.StartSwitch(ctx, &policydv1.StartSwitchRequest{
		Id: e.switchID, Spec: spec, Via: "chaos",
		End: &policydv1.StartSwitchRequest_ExpiresIn{ExpiresIn: durationpb.New(2*time.Second + time.Duration(rng.IntN(6000))*time.Millisecond)},
	})
	e.revision = out.GetStatus().GetRevision()
	return err
}

func (o *operator) extend(ctx context.Context, client policydv1.AdminServiceClient, e *edit, rng *rand.Rand) error {
	if !o.choose(e, rng) {
		return nil
	}
	e.kind = "switch.extend"
	out, err := client.ExtendSwitch(ctx, &policydv1.ExtendSwitchRequest{
		Id: e.switchID, By: durationpb.New(time.Duration(1+rng.IntN(3)) * time.Second), Via: "chaos",
	})
	e.revision = out.GetStatus().GetRevision()
	return err
}

func (o *operator) revert(ctx context.Context, client policydv1.AdminServiceClient, e *edit, rng *rand.Rand) error {
	if !o.choose(e, rng) {
		return nil
	}
	e.kind = "switch.revert"
	out, err := client.RevertSwitches(ctx, &policydv1.RevertSwitchesRequest{Ids: []string{e.switchID}, Via: "chaos"})
	if e.revision = out.GetRevision(); err == nil && e.revision == 0 {
		e.outcome = unchanged // it had ended already
	}
	return err
}

// choose takes an active switch.
func (o *operator) choose(e *edit, rng *rand.Rand) bool {
	keys := o.keys(func(_ string, d live) bool { return d.active })
	if len(keys) == 0 {
		return false
	}
	e.switchID, _ = switchID(keys[rng.IntN(len(keys))])
	return true
}

func (o *operator) keys(keep func(string, live) bool) []string {
	now := o.w.record.present()
	maps.DeleteFunc(now, func(key string, d live) bool { return !keep(key, d) })
	return slices.Sorted(maps.Keys(now))
}

// done returns the edits so far.
func (o *operator) done() []*edit {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.edits)
}
