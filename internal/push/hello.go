// SPDX-License-Identifier: Apache-2.0

package push

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// minReportEvery is how often an instance may report.
const minReportEvery = time.Second

type hello struct {
	identity fleet.Identity
	resume   resumePoint
	relay    *policydv1.Relay // nil: it is an instance
	left     []string         // epochs of which the instance takes nothing any more
}

// replaced returns an error if the instance has left the data that this policyd has for others
// that replaced them: it must look for another policyd.
func (h *Hub) replaced(hello *hello) error {
	snap := h.snap.Load()
	if snap.epoch == "" || hello.resume.epoch == snap.epoch {
		return nil
	}
	p := hello.resume.point()
	if !slices.Contains(hello.left, snap.epoch) && snap.history.Judge(p) != policy.Replaced {
		return nil
	}
	h.cfg.Suspect(p)
	if now := h.now(); h.complained.due(now) {
		h.log.Warn("instances have left the data of this policyd for others, as after a restore, and are refused; "+
			"if these are the right data, start one policyd with --new-epoch", "epoch", snap.epoch,
			"instance", hello.identity.ID, "their_epoch", fleet.Clip(hello.resume.epoch, fleet.MaxText))
	}
	return status.Errorf(codes.Unavailable, "the data of this policyd (epoch %s) were replaced by others that the instance has seen", snap.epoch)
}

// complaint is a line of the log that is due once in a while.
type complaint struct{ next atomic.Int64 }

const complainEvery = time.Minute

func (c *complaint) due(now time.Duration) bool {
	next := c.next.Load()
	return int64(now) >= next && c.next.CompareAndSwap(next, int64(now+complainEvery))
}

func readHello(req *policydv1.WatchRequest) (*hello, error) {
	m := req.GetHello()
	if m == nil {
		return nil, status.Error(codes.InvalidArgument, "hello: must be the first message")
	}
	if err := checkName("instance", m.GetInstance(), fleet.MaxName); err != nil {
		return nil, err
	}
	if m.GetNamespace() != "" {
		if s, err := engine.ParseScope(m.GetNamespace()); err != nil || s.Level() != engine.LevelNamespace {
			return nil, status.Errorf(codes.InvalidArgument, "hello: %q is no namespace", fleet.Clip(m.GetNamespace(), fleet.MaxText))
		}
	}
	if m.GetService() != "" {
		if _, err := engine.ParseScope("namespace/" + m.GetService()); err != nil || strings.Contains(m.GetService(), "/") {
			return nil, status.Errorf(codes.InvalidArgument, "hello: %q is no service", fleet.Clip(m.GetService(), fleet.MaxText))
		}
	}
	targets, err := readTargets(m.GetTargets(), m.GetNamespace())
	if err != nil {
		return nil, err
	}
	if err := checkRelay(m.GetRelay()); err != nil {
		return nil, err
	}
	return &hello{
		identity: fleet.Identity{
			ID: m.GetInstance(), Namespace: m.GetNamespace(), Service: m.GetService(),
			SDKLanguage: fleet.Clip(m.GetSdkLanguage(), fleet.MaxText), SDKVersion: fleet.Clip(m.GetSdkVersion(), fleet.MaxText),
			Mode: modeName(m.GetMode()), Targets: targets, Source: fleet.Clip(m.GetSource(), fleet.MaxText),
			Drill: isDrillSDK(m.GetCapabilities()),
		},
		relay: m.GetRelay(),
		resume: resumePoint{
			epoch: m.GetResume().GetEpoch(), revision: m.GetResume().GetRevision(), hash: m.GetResume().GetHash(),
			token: m.GetResume().GetToken(),
		},
		left: m.GetLeft(),
	}, nil
}

func checkRelay(r *policydv1.Relay) error {
	if r == nil {
		return nil
	}
	if len(r.GetBelow()) > MaxBelow {
		return status.Errorf(codes.InvalidArgument, "hello: %d relays below: at most %d", len(r.GetBelow()), MaxBelow)
	}
	if len(r.GetHome()) > fleet.MaxName || len(r.GetAddress()) > fleet.MaxReason || len(r.GetVersion()) > fleet.MaxName {
		return status.Error(codes.InvalidArgument, "hello: the relay says too much of itself")
	}
	for _, id := range append([]string{r.GetId()}, r.GetBelow()...) {
		if err := checkName("relay", id, fleet.MaxName); err != nil {
			return err
		}
	}
	return nil
}

func checkName(what, name string, limit int) error {
	switch {
	case name == "":
		return status.Errorf(codes.InvalidArgument, "hello: %s is empty", what)
	case len(name) > limit:
		return status.Errorf(codes.InvalidArgument, "hello: %s has %d bytes: at most %d", what, len(name), limit)
	case !fleet.Printable(name):
		return status.Errorf(codes.InvalidArgument, "hello: %s %q holds characters that cannot be printed", what, fleet.Clip(name, fleet.MaxText))
	}
	return nil
}

// readTargets returns the scopes that names mean for an instance of a namespace.
func readTargets(names []string, namespace string) ([]engine.Scope, error) {
	if len(names) > fleet.MaxTargets {
		return nil, status.Errorf(codes.InvalidArgument, "targets: %d scopes: at most %d", len(names), fleet.MaxTargets)
	}
	targets := make([]engine.Scope, 0, len(names))
	for _, name := range names {
		scope, err := engine.ParseScope(name)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "targets: %v", err)
		}
		targets = append(targets, scope)
	}
	if len(targets) == 0 && namespace != "" {
		targets = append(targets, engine.Scope(namespace))
	}
	return targets, nil
}

func modeName(m policydv1.Mode) string {
	switch m {
	case policydv1.Mode_MODE_OBSERVE:
		return "observe"
	case policydv1.Mode_MODE_OFF:
		return "off"
	case policydv1.Mode_MODE_UNSPECIFIED, policydv1.Mode_MODE_ENFORCE:
	}
	return "enforce"
}

func rejections(all []*policydv1.Rejection) []fleet.Rejection {
	if len(all) == 0 {
		return nil
	}
	all = all[:min(len(all), fleet.MaxRejections)]
	kept := make([]fleet.Rejection, len(all))
	for i, r := range all {
		kept[i] = fleet.Rejection{
			Scope: fleet.Clip(r.GetScope(), fleet.MaxPath), Revision: r.GetRevision(),
			Field: fleet.Clip(r.GetField(), fleet.MaxPath), Reason: fleet.Clip(r.GetReason(), fleet.MaxReason),
		}
	}
	return kept
}

func report(m *policydv1.Report) *fleet.Report {
	r := &fleet.Report{Period: min(max(m.GetPeriod().AsDuration(), 0), fleet.MaxPeriod)}
	r.Endpoints = make([]fleet.EndpointReport, 0, len(m.GetEndpoints()))
	for _, e := range m.GetEndpoints() {
		r.Endpoints = append(r.Endpoints, fleet.EndpointReport{
			Endpoint: fleet.Clip(e.GetEndpoint(), fleet.MaxPath),
			Calls:    max(e.GetCalls(), 0), Attempts: max(e.GetAttempts(), 0), Failed: max(e.GetFailed(), 0),
			Rescued: max(e.GetRescued(), 0), Rejected: max(e.GetRejected(), 0),
			Suppressed: fleet.FoldCodes(e.GetSuppressed(), fleet.MaxCodes), Breaker: fleet.Clip(e.GetBreaker(), fleet.MaxText),
			BudgetLeft: max(e.GetBudgetLeft(), 0), Unmatched: e.GetUnmatched(),
		})
	}
	r.Fold(fleet.MaxReported)
	return r
}
