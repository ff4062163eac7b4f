// SPDX-License-Identifier: Apache-2.0

// Package rpc serves AdminService over gRPC: it translates requests, calls admin and maps
// its failures. It holds no rules. Until authentication exists every caller is the
// principal "local", so that the service must be reachable from loopback only.
package rpc

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	sdkwire "github.com/policyd/policyd/sdk/go/wire"
)

// MaxMessageBytes bounds a request: 100 documents of 64 KiB and what surrounds them.
const MaxMessageBytes = 8 << 20

// Server implements AdminService. Safe for concurrent use.
type Server struct {
	policydv1.UnimplementedAdminServiceServer

	admin *admin.Service
	// draining is closed when streams must end.
	draining  chan struct{}
	drainOnce sync.Once
}

var _ policydv1.AdminServiceServer = (*Server)(nil)

// New returns a Server over service.
func New(service *admin.Service) *Server {
	return &Server{admin: service, draining: make(chan struct{})}
}

// Register adds AdminService to a gRPC server that was made with Options.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	policydv1.RegisterAdminServiceServer(to, s)
}

// Drain ends progress streams, so that a graceful stop does not wait for their readers.
// Calls in progress are finished.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Options are the server options that AdminService relies on: interceptors that give each
// request an id, log it, turn panics and faults into statuses, and the message size limit.
// Other services on the same server may share them: a status passes through as it is.
func Options(logger *slog.Logger) []grpc.ServerOption {
	e := edge{log: logger.With("component", "rpc")}
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.ChainUnaryInterceptor(e.unary),
		grpc.ChainStreamInterceptor(e.stream),
	}
}

// principal of every caller until authentication exists.
const principal = "local"

// caller says who asks; via is what the tool says of itself.
func caller(ctx context.Context, via string) admin.Caller {
	const most = 64
	via = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, via)
	if via == "" {
		via = "grpc"
	}
	return admin.Caller{
		Actor:     policy.Actor{Name: principal, Via: via[:min(len(via), most)]},
		RequestID: requestID(ctx),
	}
}

// ApplyPolicies implements policydv1.AdminServiceServer.
func (s *Server) ApplyPolicies(ctx context.Context, in *policydv1.ApplyPoliciesRequest) (*policydv1.ApplyPoliciesResponse, error) {
	req := admin.ApplyRequest{
		PruneManagedBy: in.GetPruneManagedBy(), DryRun: in.GetDryRun(), Reason: in.GetReason(), Confirm: in.GetConfirm(),
	}
	for _, c := range in.GetChanges() {
		p, err := wire.Policy(c.GetPolicy(), 0)
		if err != nil {
			return nil, err
		}
		req.Changes = append(req.Changes, admin.PolicyChange{Policy: p, Expected: revision(c.ExpectedRevision)})
	}
	for _, d := range in.GetDeletions() {
		req.Deletions = append(req.Deletions, admin.PolicyDeletion{
			Scope: engine.Scope(d.GetScope()), Expected: revision(d.ExpectedRevision),
		})
	}
	result, err := s.admin.Apply(ctx, caller(ctx, in.GetVia()), req)
	if err != nil {
		return nil, err
	}
	out := &policydv1.ApplyPoliciesResponse{Revision: int64(result.Revision)}
	for i := range result.Results {
		out.Results = append(out.Results, changeResultProto(&result.Results[i]))
	}
	return out, nil
}

func revision(r *int64) *policy.Revision {
	if r == nil {
		return nil
	}
	v := policy.Revision(*r)
	return &v
}

// GetPolicy implements policydv1.AdminServiceServer.
func (s *Server) GetPolicy(ctx context.Context, in *policydv1.GetPolicyRequest) (*policydv1.GetPolicyResponse, error) {
	st, err := s.admin.Policy(ctx, engine.Scope(in.GetScope()))
	if err != nil {
		return nil, err
	}
	return &policydv1.GetPolicyResponse{Policy: policyStatusProto(&st)}, nil
}

// ListPolicies implements policydv1.AdminServiceServer.
func (s *Server) ListPolicies(ctx context.Context, in *policydv1.ListPoliciesRequest) (*policydv1.ListPoliciesResponse, error) {
	revision, found, err := s.admin.Policies(ctx, engine.Scope(in.GetScope()), in.GetLabels())
	if err != nil {
		return nil, err
	}
	out := &policydv1.ListPoliciesResponse{Revision: int64(revision)}
	for i := range found {
		out.Policies = append(out.Policies, policyStatusProto(&found[i]))
	}
	return out, nil
}

// GetEffective implements policydv1.AdminServiceServer.
func (s *Server) GetEffective(ctx context.Context, in *policydv1.GetEffectiveRequest) (*policydv1.GetEffectiveResponse, error) {
	e, err := s.admin.Effective(ctx, engine.Scope(in.GetScope()))
	if err != nil {
		return nil, err
	}
	out := &policydv1.GetEffectiveResponse{Revision: int64(e.Revision), Progress: progressProto(e.Progress)}
	for i := range e.Values {
		out.Values = append(out.Values, effectiveValueProto(&e.Values[i]))
	}
	for _, sw := range e.Switches {
		out.Switches = append(out.Switches, wire.SwitchProto(sw))
	}
	return out, nil
}

// StartSwitch implements policydv1.AdminServiceServer.
func (s *Server) StartSwitch(ctx context.Context, in *policydv1.StartSwitchRequest) (*policydv1.StartSwitchResponse, error) {
	spec, err := wire.SwitchSpec(in.GetSpec())
	if err != nil {
		return nil, err
	}
	req := admin.StartRequest{
		ID: in.GetId(), Spec: spec, FactorAbsent: in.GetSpec().Factor == nil,
		Confirm: in.GetConfirm(), DryRun: in.GetDryRun(), Drill: in.GetDrill(),
	}
	switch end := in.GetEnd().(type) {
	case *policydv1.StartSwitchRequest_ExpiresIn:
		if req.ExpiresIn, err = duration("expiresIn", end.ExpiresIn); err != nil {
			return nil, err
		}
	case *policydv1.StartSwitchRequest_ExpiresAt:
		if err := end.ExpiresAt.CheckValid(); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "invalid_document", "expiresAt")
		}
		req.ExpiresAt = end.ExpiresAt.AsTime()
	}
	result, err := s.admin.StartSwitch(ctx, caller(ctx, in.GetVia()), req)
	if err != nil {
		return nil, err
	}
	return &policydv1.StartSwitchResponse{
		Status: switchStatusProto(&result.Status), Preview: previewProto(&result.Preview), Existed: result.Existed,
	}, nil
}

// GetSwitch implements policydv1.AdminServiceServer.
func (s *Server) GetSwitch(ctx context.Context, in *policydv1.GetSwitchRequest) (*policydv1.GetSwitchResponse, error) {
	st, err := s.admin.Switch(ctx, in.GetId())
	if err != nil {
		return nil, err
	}
	return &policydv1.GetSwitchResponse{Status: switchStatusProto(&st)}, nil
}

// ListSwitches implements policydv1.AdminServiceServer.
func (s *Server) ListSwitches(ctx context.Context, in *policydv1.ListSwitchesRequest) (*policydv1.ListSwitchesResponse, error) {
	within, err := duration("within", in.GetWithin())
	if err != nil {
		return nil, err
	}
	revision, found, err := s.admin.Switches(ctx, admin.SwitchFilter{
		Active: in.GetActive(), Ended: in.GetEnded(), Within: within,
		Incident: in.GetIncident(), Scope: engine.Scope(in.GetScope()),
	})
	if err != nil {
		return nil, err
	}
	return &policydv1.ListSwitchesResponse{Revision: int64(revision), Switches: switchStatusesProto(found)}, nil
}

// ExtendSwitch implements policydv1.AdminServiceServer.
func (s *Server) ExtendSwitch(ctx context.Context, in *policydv1.ExtendSwitchRequest) (*policydv1.ExtendSwitchResponse, error) {
	by, err := duration("by", in.GetBy())
	if err != nil {
		return nil, err
	}
	st, err := s.admin.ExtendSwitch(ctx, caller(ctx, in.GetVia()), in.GetId(), by)
	if err != nil {
		return nil, err
	}
	return &policydv1.ExtendSwitchResponse{Status: switchStatusProto(&st)}, nil
}

// RevertSwitches implements policydv1.AdminServiceServer.
func (s *Server) RevertSwitches(ctx context.Context, in *policydv1.RevertSwitchesRequest) (*policydv1.RevertSwitchesResponse, error) {
	revision, found, err := s.admin.RevertSwitches(ctx, caller(ctx, in.GetVia()), admin.RevertRequest{
		IDs: in.GetIds(), Incident: in.GetIncident(), Scope: engine.Scope(in.GetScope()),
	})
	if err != nil {
		return nil, err
	}
	return &policydv1.RevertSwitchesResponse{Revision: int64(revision), Switches: switchStatusesProto(found)}, nil
}

// ListInstances implements policydv1.AdminServiceServer.
func (s *Server) ListInstances(ctx context.Context, in *policydv1.ListInstancesRequest) (*policydv1.ListInstancesResponse, error) {
	state, err := instanceState(in.GetState())
	if err != nil {
		return nil, err
	}
	found, err := s.admin.Instances(ctx, admin.InstanceFilter{
		Scope: engine.Scope(in.GetScope()), Service: in.GetService(), State: state, NotInForce: in.GetNotInForce(),
	})
	if err != nil {
		return nil, err
	}
	return &policydv1.ListInstancesResponse{
		Revision: int64(found.Revision), Instances: instancesProto(found.Instances), SilentPeers: silentPeers(found.Peers),
	}, nil
}

// GetInstance implements policydv1.AdminServiceServer.
func (s *Server) GetInstance(ctx context.Context, in *policydv1.GetInstanceRequest) (*policydv1.GetInstanceResponse, error) {
	found, err := s.admin.Instance(ctx, in.GetId())
	if err != nil {
		return nil, err
	}
	out := &policydv1.GetInstanceResponse{Instance: wire.InstanceProto(&found)}
	if found.Report != nil {
		out.Report, out.ReportedAt = wire.ReportProto(found.Report), sdkwire.Timestamp(found.ReportedAt)
	}
	return out, nil
}

// WatchProgress implements policydv1.AdminServiceServer.
func (s *Server) WatchProgress(in *policydv1.WatchProgressRequest, stream grpc.ServerStreamingServer[policydv1.WatchProgressResponse]) error {
	subject := admin.Subject{Revision: policy.Revision(in.GetRevision()), SwitchID: in.GetSwitchId()}
	err := s.admin.WatchProgress(stream.Context(), s.draining, subject, func(r admin.ProgressReport) error {
		return stream.Send(&policydv1.WatchProgressResponse{
			Revision: int64(r.Revision), Progress: progressProto(r.Progress), Missing: instancesProto(r.Missing),
		})
	})
	if err == nil && stream.Context().Err() == nil {
		return fault.New(fault.Unavailable, "stopping", "policyd is stopping").WithHint("Connect again.")
	}
	return err
}

// GetStatus implements policydv1.AdminServiceServer.
func (s *Server) GetStatus(ctx context.Context, in *policydv1.GetStatusRequest) (*policydv1.GetStatusResponse, error) {
	st, err := s.admin.Status(ctx, engine.Scope(in.GetScope()))
	if err != nil {
		return nil, err
	}
	out := &policydv1.GetStatusResponse{
		Revision: int64(st.Revision), Epoch: string(st.Epoch), ServerTime: timestamppb.New(st.ServerTime),
		StoreStale: st.StoreStale, StoreAsOf: sdkwire.Timestamp(st.StoreAsOf),
		Switches: switchStatusesProto(st.Switches), Fleet: progressProto(st.Fleet), Traffic: trafficProto(&st.Traffic),
		Version: st.Version, OutboxBacklog: st.Backlog, Peers: peersProto(st.Peers), RelayOf: st.RelayOf,
	}
	for _, b := range st.Breakers {
		out.Breakers = append(out.Breakers, &policydv1.BreakerSummary{Endpoint: b.Endpoint, States: counts(b.States)})
	}
	return out, nil
}
