// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// What -o json prints. Fields are only ever added.

type progressView struct {
	Target   int64 `json:"target"`
	InForce  int64 `json:"inForce"`
	Behind   int64 `json:"behind"`
	Rejected int64 `json:"rejected"`
	Stale    int64 `json:"stale"`
	// SilentPeers did not answer; their instances are not counted.
	SilentPeers int64 `json:"silentPeers,omitempty"`
}

func viewProgress(p *policydv1.Progress) progressView {
	return progressView{p.GetTarget(), p.GetInForce(), p.GetBehind(), p.GetRejected(), p.GetStale(), p.GetSilentPeers()}
}

func counts(p *policydv1.Progress) *document.Instances {
	if p == nil {
		return nil
	}
	return &document.Instances{
		Target: p.GetTarget(), InForce: p.GetInForce(), Behind: p.GetBehind(), Rejected: p.GetRejected(), Stale: p.GetStale(),
	}
}

type rejectionView struct {
	Scope    string `json:"scope"`
	Revision int64  `json:"revision"`
	Field    string `json:"field,omitempty"`
	Reason   string `json:"reason"`
}

type instanceView struct {
	ID             string          `json:"id"`
	Service        string          `json:"service"`
	SDK            string          `json:"sdk"`
	Mode           string          `json:"mode"`
	Targets        []string        `json:"targets,omitempty"`
	State          string          `json:"state"`
	Since          *time.Time      `json:"since,omitempty"`
	Revision       int64           `json:"revision"`
	WantedRevision int64           `json:"wantedRevision"`
	Rejected       []rejectionView `json:"rejected,omitempty"`
	ConnectedAt    *time.Time      `json:"connectedAt,omitempty"`
	LastSeen       *time.Time      `json:"lastSeen,omitempty"`
	Source         string          `json:"source,omitempty"`
	Resumed        bool            `json:"resumed"`
}

func viewInstance(in *policydv1.Instance) instanceView {
	v := instanceView{
		ID: in.GetId(), Service: serviceName(in), SDK: sdkName(in), Mode: enumWord(in.GetMode().String(), "MODE_"),
		Targets: in.GetTargets(), State: stateWord(in.GetState()), Since: timeView(in.GetSince()),
		Revision: in.GetRevision(), WantedRevision: in.GetWantedRevision(),
		ConnectedAt: timeView(in.GetConnectedAt()), LastSeen: timeView(in.GetLastSeen()),
		Source: in.GetSource(), Resumed: in.GetResumed(),
	}
	for _, r := range in.GetRejected() {
		v.Rejected = append(v.Rejected, rejectionView{r.GetScope(), r.GetRevision(), r.GetField(), r.GetReason()})
	}
	return v
}

func viewInstances(all []*policydv1.Instance) []instanceView {
	views := make([]instanceView, 0, len(all))
	for _, in := range all {
		views = append(views, viewInstance(in))
	}
	return views
}

func serviceName(in *policydv1.Instance) string {
	if in.GetNamespace() == "" {
		return in.GetService()
	}
	return in.GetNamespace() + "/" + in.GetService()
}

func sdkName(in *policydv1.Instance) string {
	return strings.TrimSpace(in.GetSdkLanguage() + " " + in.GetSdkVersion())
}

func stateWord(s policydv1.InstanceState) string { return enumWord(s.String(), "INSTANCE_STATE_") }

// enumWord turns INSTANCE_STATE_LIVE into live.
func enumWord(name, prefix string) string {
	word := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, prefix), "_", "-"))
	if word == "unspecified" {
		return ""
	}
	return word
}

func timeView(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	at := t.AsTime()
	return &at
}

// switchObject is a kill switch as a document with its status.
func switchObject(st *policydv1.SwitchStatus) (*document.Object, error) {
	sw, err := wire.Switch(st.GetKillSwitch(), policy.Revision(st.GetRevision()))
	if err != nil {
		return nil, err
	}
	return &document.Object{
		Switch: &document.Switch{Switch: *sw, Revision: policy.Revision(st.GetRevision())},
		Status: &document.Status{Phase: sw.Phase, EndedAt: sw.EndedAt, Instances: counts(st.GetProgress())},
	}, nil
}

// policyObject is a policy as a document with its status.
func policyObject(v *policydv1.VersionedPolicy) (*document.Object, error) {
	p, err := wire.Policy(v.GetPolicy(), policy.Revision(v.GetRevision()))
	if err != nil {
		return nil, err
	}
	o := &document.Object{Policy: p}
	if v.GetProgress() != nil {
		o.Status = &document.Status{Instances: counts(v.GetProgress())}
	}
	return o, nil
}

// bare is the document without what only the server sets.
func bare(o *document.Object) *document.Object {
	p := *o.Policy
	p.Revision = 0
	p.Metadata.CreatedAt, p.Metadata.UpdatedAt = time.Time{}, time.Time{}
	p.Metadata.CreatedBy, p.Metadata.UpdatedBy = policy.Actor{}, policy.Actor{}
	return &document.Object{Policy: &p}
}
