// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/rpc"
	"github.com/policyd/policyd/internal/store/storetest"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

type house struct {
	policydv1.AdminServiceClient
	store  *storetest.Memory
	fleet  *fleet.Registry
	server *rpc.Server
	logs   *buffer
}

// buffer is where a server that runs beside the test writes its log.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{fleet: fleet.New(), logs: &buffer{}, store: storetest.NewMemory()}
	logger := slog.New(slog.NewTextHandler(h.logs, nil))
	h.server = rpc.New(admin.New(admin.Config{Store: h.store, Fleet: h.fleet, Logger: logger, Version: "test"}))
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(rpc.Options(logger)...)
	h.server.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///policyd",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.Stop()
		require.NoError(t, <-served)
	})
	h.AdminServiceClient = policydv1.NewAdminServiceClient(conn)
	return h
}

func (h *house) lastEntry(t *testing.T) policy.Entry {
	t.Helper()
	entries, err := h.store.Outbox(t.Context(), 100)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	return entries[len(entries)-1]
}

func detail(t *testing.T, err error, code codes.Code) *policydv1.ErrorDetail {
	t.Helper()
	require.Equal(t, code, status.Code(err), "%v", err)
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(*policydv1.ErrorDetail); ok {
			return d
		}
	}
	require.Fail(t, "no detail", "%v", err)
	return nil
}

func spec(attempts int64) *policydv1.PolicySpec {
	return &policydv1.PolicySpec{MaxAttempts: &attempts}
}

func change(scope string, expected *int64, attempts int64) *policydv1.PolicyChange {
	return &policydv1.PolicyChange{
		Policy:           &policydv1.Policy{Scope: scope, Spec: spec(attempts), Metadata: &policydv1.Metadata{Owner: "team"}},
		ExpectedRevision: expected,
	}
}

func TestPolicies_from_apply_to_delete(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	applied, err := h.ApplyPolicies(ctx, &policydv1.ApplyPoliciesRequest{
		Changes: []*policydv1.PolicyChange{change("shop/payments", proto.Int64(0), 4)}, Via: "policyctl", Reason: "because",
	})
	require.NoError(t, err)
	require.EqualValues(t, 2, applied.GetRevision())
	require.Equal(t, policydv1.ChangeKind_CHANGE_KIND_CREATED, applied.GetResults()[0].GetKind())
	require.Equal(t, "maxAttempts", applied.GetResults()[0].GetFields()[0].GetPath())
	entry := h.lastEntry(t)
	require.Equal(t, policy.Actor{Name: "local", Via: "policyctl"}, entry.Actor)
	require.NotEmpty(t, entry.RequestID)

	got, err := h.GetPolicy(ctx, &policydv1.GetPolicyRequest{Scope: "shop/payments"})
	require.NoError(t, err)
	require.EqualValues(t, 4, got.GetPolicy().GetPolicy().GetSpec().GetMaxAttempts())
	require.Equal(t, "local", got.GetPolicy().GetPolicy().GetMetadata().GetUpdatedBy().GetName())
	require.EqualValues(t, 2, got.GetPolicy().GetRevision())

	list, err := h.ListPolicies(ctx, &policydv1.ListPoliciesRequest{Scope: "shop"})
	require.NoError(t, err)
	require.Len(t, list.GetPolicies(), 1)
	require.EqualValues(t, 2, list.GetRevision())

	effective, err := h.GetEffective(ctx, &policydv1.GetEffectiveRequest{Scope: "shop/payments/charges"})
	require.NoError(t, err)
	values := map[string]*policydv1.EffectiveValue{}
	for _, v := range effective.GetValues() {
		values[v.GetPath()] = v
	}
	require.Equal(t, "4", values["maxAttempts"].GetValue())
	require.Equal(t, "shop/payments", values["maxAttempts"].GetOrigin().GetFrom())
	require.Equal(t, "3", values["maxAttempts"].GetShadows()[0].GetValue())
	require.Equal(t, "200ms", values["backoff.base"].GetValue())
	require.Equal(t, "[429, 502, 503, 504]", values["retryOn.http"].GetValue())

	deleted, err := h.ApplyPolicies(ctx, &policydv1.ApplyPoliciesRequest{
		Deletions: []*policydv1.PolicyDeletion{{Scope: "shop/payments", ExpectedRevision: proto.Int64(2)}}, Confirm: "shop",
	})
	require.NoError(t, err)
	require.Equal(t, policydv1.ChangeKind_CHANGE_KIND_DELETED, deleted.GetResults()[0].GetKind())
	_, err = h.GetPolicy(ctx, &policydv1.GetPolicyRequest{Scope: "shop/payments"})
	require.Equal(t, "policy_not_found", detail(t, err, codes.NotFound).GetReason())
}

func TestApply_failures_say_what_to_do(t *testing.T) {
	h := newHouse(t)
	apply := func(c *policydv1.PolicyChange) error {
		_, err := h.ApplyPolicies(t.Context(), &policydv1.ApplyPoliciesRequest{Changes: []*policydv1.PolicyChange{c}})
		return err
	}
	require.Equal(t, "precondition_required", detail(t, apply(change("shop", nil, 2)), codes.InvalidArgument).GetReason())

	d := detail(t, apply(change("shop", proto.Int64(0), 11)), codes.InvalidArgument)
	require.Equal(t, "spec.maxAttempts", d.GetViolations()[0].GetPath())
	require.Equal(t, "11", d.GetViolations()[0].GetValue())

	require.NoError(t, apply(change("shop", proto.Int64(0), 2)))
	d = detail(t, apply(change("shop", proto.Int64(1), 3)), codes.Aborted)
	require.Equal(t, "revision_moved", d.GetReason())
	require.EqualValues(t, 2, d.GetConflict().GetCurrentRevision())
	require.EqualValues(t, 2, d.GetConflict().GetCurrent().GetSpec().GetMaxAttempts())
	require.Equal(t, "local", d.GetConflict().GetBy().GetName())
	require.WithinDuration(t, time.Now(), d.GetConflict().GetAt().AsTime(), time.Minute)

	_, err := h.ApplyPolicies(t.Context(), &policydv1.ApplyPoliciesRequest{PruneManagedBy: "git"})
	require.Equal(t, "prune_empty", detail(t, err, codes.FailedPrecondition).GetReason())
	_, err = h.ApplyPolicies(t.Context(), &policydv1.ApplyPoliciesRequest{Changes: []*policydv1.PolicyChange{{}}})
	require.NotEmpty(t, detail(t, err, codes.InvalidArgument).GetReason())
}

func switchRequest(edit ...func(*policydv1.StartSwitchRequest)) *policydv1.StartSwitchRequest {
	req := &policydv1.StartSwitchRequest{
		Id: "inc-1",
		Spec: &policydv1.SwitchSpec{
			Action: policydv1.SwitchAction_SWITCH_ACTION_DISABLE_RETRIES, Scope: "shop", Reason: "brown-out", Incident: "INC-1",
		},
		End: &policydv1.StartSwitchRequest_ExpiresIn{ExpiresIn: durationpb.New(30 * time.Minute)}, Via: "policyctl",
	}
	for _, e := range edit {
		e(req)
	}
	return req
}

func TestSwitches_from_start_to_revert(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.fleet.Connect(fleet.Identity{ID: "cart-1", Namespace: "shop", Service: "cart", Targets: []engine.Scope{"shop"}}, 1, false)

	started, err := h.StartSwitch(ctx, switchRequest())
	require.NoError(t, err)
	require.False(t, started.GetExisted())
	require.EqualValues(t, 1, started.GetPreview().GetInstances())
	require.Equal(t, map[string]int64{"shop/cart": 1}, started.GetPreview().GetServices())
	st := started.GetStatus()
	require.Equal(t, policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE, st.GetKillSwitch().GetPhase())
	require.EqualValues(t, 1, st.GetProgress().GetTarget())
	require.EqualValues(t, 2, st.GetRevision())
	require.Equal(t, 2*time.Minute, st.GetKillSwitch().GetSpec().GetRestore().GetOver().AsDuration())
	require.Equal(t, 30*time.Minute, st.GetLeft().AsDuration())

	again, err := h.StartSwitch(ctx, switchRequest())
	require.NoError(t, err)
	require.True(t, again.GetExisted())

	got, err := h.GetSwitch(ctx, &policydv1.GetSwitchRequest{Id: "inc-1"})
	require.NoError(t, err)
	require.Equal(t, "INC-1", got.GetStatus().GetKillSwitch().GetSpec().GetIncident())
	list, err := h.ListSwitches(ctx, &policydv1.ListSwitchesRequest{Active: true, Within: durationpb.New(time.Hour)})
	require.NoError(t, err)
	require.Len(t, list.GetSwitches(), 1)

	extended, err := h.ExtendSwitch(ctx, &policydv1.ExtendSwitchRequest{Id: "inc-1", By: durationpb.New(time.Hour)})
	require.NoError(t, err)
	require.Equal(t, time.Hour, extended.GetStatus().GetKillSwitch().GetExpiresAt().AsTime().Sub(st.GetKillSwitch().GetExpiresAt().AsTime()))

	reverted, err := h.RevertSwitches(ctx, &policydv1.RevertSwitchesRequest{Incident: "INC-1"})
	require.NoError(t, err)
	require.EqualValues(t, 4, reverted.GetRevision())
	require.Equal(t, policydv1.SwitchPhase_SWITCH_PHASE_RESTORING, reverted.GetSwitches()[0].GetKillSwitch().GetPhase())
}

func TestStartSwitch_refuses(t *testing.T) {
	for name, tc := range map[string]struct {
		edit   func(*policydv1.StartSwitchRequest)
		code   codes.Code
		reason string
	}{
		"no end":  {func(r *policydv1.StartSwitchRequest) { r.End = nil }, codes.InvalidArgument, "switch_invalid"},
		"no spec": {func(r *policydv1.StartSwitchRequest) { r.Spec = nil }, codes.InvalidArgument, "invalid_document"},
		"a time out of range": {func(r *policydv1.StartSwitchRequest) {
			r.End = &policydv1.StartSwitchRequest_ExpiresIn{ExpiresIn: &durationpb.Duration{Seconds: 1 << 60}}
		}, codes.InvalidArgument, "invalid_document"},
		"a clock out of range": {func(r *policydv1.StartSwitchRequest) {
			r.End = &policydv1.StartSwitchRequest_ExpiresAt{ExpiresAt: &timestamppb.Timestamp{Seconds: 1 << 60}}
		}, codes.InvalidArgument, "invalid_document"},
		"290 years": {func(r *policydv1.StartSwitchRequest) {
			r.End = &policydv1.StartSwitchRequest_ExpiresIn{ExpiresIn: &durationpb.Duration{Seconds: 300_000_000_000}}
		}, codes.InvalidArgument, "switch_invalid"},
		"tighten-budget by nothing": {func(r *policydv1.StartSwitchRequest) {
			r.Spec.Action = policydv1.SwitchAction_SWITCH_ACTION_TIGHTEN_BUDGET
		}, codes.InvalidArgument, "switch_invalid"},
		"global without a word": {func(r *policydv1.StartSwitchRequest) { r.Spec.Scope = "global" }, codes.FailedPrecondition, "global_unconfirmed"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			_, err := h.StartSwitch(t.Context(), switchRequest(tc.edit))
			require.Equal(t, tc.reason, detail(t, err, tc.code).GetReason())
			require.Empty(t, h.store.View().Switches)
		})
	}
}

func TestFleet_and_status(t *testing.T) {
	h := newHouse(t)
	s := h.fleet.Connect(fleet.Identity{ID: "cart-1", Namespace: "shop", Service: "cart", Mode: "observe", Targets: []engine.Scope{"shop"}}, 1, true)
	s.Confirmed(1, []fleet.Rejection{{Scope: "shop/search", Revision: 1, Field: "hedging", Reason: "not supported"}})
	s.Reported(&fleet.Report{Period: 10 * time.Second, Endpoints: []fleet.EndpointReport{
		{Endpoint: "shop/search/query", Calls: 100, Attempts: 130, Breaker: "open", Suppressed: map[string]int64{"budget_exhausted": 10}},
	}})

	list, err := h.ListInstances(t.Context(), &policydv1.ListInstancesRequest{State: policydv1.InstanceState_INSTANCE_STATE_REJECTED, NotInForce: true})
	require.NoError(t, err)
	require.Len(t, list.GetInstances(), 1)
	in := list.GetInstances()[0]
	require.Equal(t, policydv1.Mode_MODE_OBSERVE, in.GetMode())
	require.Equal(t, "hedging", in.GetRejected()[0].GetField())
	require.True(t, in.GetResumed())
	_, err = h.ListInstances(t.Context(), &policydv1.ListInstancesRequest{State: 99})
	detail(t, err, codes.InvalidArgument)

	one, err := h.GetInstance(t.Context(), &policydv1.GetInstanceRequest{Id: "cart-1"})
	require.NoError(t, err)
	require.EqualValues(t, 130, one.GetReport().GetEndpoints()[0].GetAttempts())
	require.NotNil(t, one.GetReportedAt())
	_, err = h.GetInstance(t.Context(), &policydv1.GetInstanceRequest{Id: "zz"})
	detail(t, err, codes.NotFound)

	st, err := h.GetStatus(t.Context(), &policydv1.GetStatusRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 1, st.GetFleet().GetRejected())
	require.InDelta(t, 3, st.GetTraffic().GetRetriesPerSecond(), 1e-9)
	require.InDelta(t, 1, st.GetTraffic().GetSuppressedPerSecond()["budget_exhausted"], 1e-9)
	require.EqualValues(t, 1, st.GetBreakers()[0].GetStates()["open"])
	require.Equal(t, "test", st.GetVersion())
	require.EqualValues(t, h.store.View().Epoch, st.GetEpoch())
}

func TestWatchProgress_until_all_have_it(t *testing.T) {
	h := newHouse(t)
	s := h.fleet.Connect(fleet.Identity{ID: "cart-1", Targets: []engine.Scope{"shop"}}, 1, false)
	started, err := h.StartSwitch(t.Context(), switchRequest())
	require.NoError(t, err)
	stream, err := h.WatchProgress(t.Context(), &policydv1.WatchProgressRequest{Subject: &policydv1.WatchProgressRequest_SwitchId{SwitchId: "inc-1"}})
	require.NoError(t, err)
	first, err := stream.Recv()
	require.NoError(t, err)
	require.EqualValues(t, 1, first.GetProgress().GetBehind())
	require.Equal(t, "cart-1", first.GetMissing()[0].GetId())
	s.Confirmed(started.GetStatus().GetRevision(), nil)
	second, err := stream.Recv()
	require.NoError(t, err)
	require.EqualValues(t, 1, second.GetProgress().GetInForce())
	require.Empty(t, second.GetMissing())

	h.server.Drain()
	h.server.Drain() // twice is once
	_, err = stream.Recv()
	require.Equal(t, "stopping", detail(t, err, codes.Unavailable).GetReason())
}

func TestWatchProgress_of_nothing_fails(t *testing.T) {
	h := newHouse(t)
	stream, err := h.WatchProgress(t.Context(), &policydv1.WatchProgressRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, "subject_missing", detail(t, err, codes.InvalidArgument).GetReason())
}

func TestRequestID_comes_back_and_is_made_when_missing(t *testing.T) {
	h := newHouse(t)
	for name, tc := range map[string]struct {
		sent string
		kept bool
	}{
		"the caller's":       {"req-42", true},
		"none":               {"", false},
		"one with a blank":   {"req 42", false},
		"one that is a text": {strings.Repeat("x", 65), false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if tc.sent != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, rpc.RequestIDHeader, tc.sent)
			}
			var header metadata.MD
			_, err := h.GetStatus(ctx, &policydv1.GetStatusRequest{}, grpc.Header(&header))
			require.NoError(t, err)
			require.Len(t, header.Get(rpc.RequestIDHeader), 1)
			id := header.Get(rpc.RequestIDHeader)[0]
			require.NotEmpty(t, id)
			require.Equal(t, tc.kept, id == tc.sent)

			stream, err := h.WatchProgress(ctx, &policydv1.WatchProgressRequest{Subject: &policydv1.WatchProgressRequest_Revision{Revision: 1}})
			require.NoError(t, err)
			header, err = stream.Header()
			require.NoError(t, err)
			require.Len(t, header.Get(rpc.RequestIDHeader), 1)
		})
	}
}

func TestInternal_errors_show_a_number_and_log_the_cause_once(t *testing.T) {
	for name, commit := range map[string]func(policy.Transaction) error{
		"an error": func(policy.Transaction) error { return errors.New("secret cause") },
		"a panic":  func(policy.Transaction) error { panic("secret cause") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.store.Refuse(commit)
			ctx := metadata.AppendToOutgoingContext(t.Context(), rpc.RequestIDHeader, "req-42")
			_, err := h.StartSwitch(ctx, switchRequest())
			require.Equal(t, "internal error, request req-42", status.Convert(err).Message())
			require.Equal(t, "req-42", detail(t, err, codes.Internal).GetRequestId())
			require.NotContains(t, err.Error(), "secret")
			require.Equal(t, 1, strings.Count(h.logs.String(), "secret cause"), h.logs.String())
			require.Contains(t, h.logs.String(), "request_id=req-42")

			_, err = h.GetStatus(t.Context(), &policydv1.GetStatusRequest{})
			require.NoError(t, err, "policyd goes on")
		})
	}
}

func TestFailures_of_the_caller_are_not_in_the_log(t *testing.T) {
	h := newHouse(t)
	_, err := h.GetPolicy(t.Context(), &policydv1.GetPolicyRequest{Scope: "shop"})
	detail(t, err, codes.NotFound)
	require.Empty(t, h.logs.String())
	h.store.Refuse(func(policy.Transaction) error { return fault.New(fault.Unavailable, "no_quorum", "no leader") })
	_, err = h.StartSwitch(t.Context(), switchRequest())
	require.Equal(t, "no_quorum", detail(t, err, codes.Unavailable).GetReason())
	require.Contains(t, h.logs.String(), "level=WARN")
}

func TestMessages_above_the_limit_are_refused(t *testing.T) {
	h := newHouse(t)
	_, err := h.ApplyPolicies(t.Context(), &policydv1.ApplyPoliciesRequest{Reason: strings.Repeat("x", rpc.MaxMessageBytes)})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestVia_is_bounded_text(t *testing.T) {
	h := newHouse(t)
	for sent, kept := range map[string]string{"": "grpc", "ui\n\x00": "ui", strings.Repeat("x", 500): strings.Repeat("x", 64)} {
		_, err := h.StartSwitch(t.Context(), switchRequest(func(r *policydv1.StartSwitchRequest) { r.Id, r.Via = "", sent }))
		require.NoError(t, err)
		require.Equal(t, kept, h.lastEntry(t).Actor.Via)
	}
}
