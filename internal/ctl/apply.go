// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

type applyOptions struct {
	files    []string
	dryRun   bool
	rebase   bool
	exitCode bool
	yes      bool
	plan     planOptions
	wait     waitFlags
}

func newApplyCmd(a *app) *cobra.Command {
	o := &applyOptions{}
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Write policies, start switches; all or none",
		Long:  "Replaces the policies at the scopes of the documents, all or none, and starts the kill\nswitches among them. Shows the plan first and waits until it is in force.",
		Example: `  policyctl apply -f policies/ --reason "ride out the fail-over"
  policyctl apply -f policies/ --prune --managed-by git --yes`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.exitCode && !o.dryRun {
				return usagef("--exit-code goes with --dry-run")
			}
			return a.apply(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	filesVar(cmd, &o.files)
	f.BoolVar(&o.dryRun, "dry-run", false, "only show the plan")
	f.BoolVar(&o.rebase, "rebase", false, "write over newer revisions than the documents state")
	f.BoolVar(&o.exitCode, "exit-code", false, "with --dry-run: end with 3 if something would change")
	f.BoolVar(&o.plan.prune, "prune", false, "delete policies with the same --managed-by that have no document")
	f.StringVar(&o.plan.managedBy, "managed-by", "", "name of the tool or repository that owns the documents")
	f.StringVar(&o.plan.reason, "reason", "", "why, for the record")
	f.StringVar(&o.plan.confirm, "confirm", "", "scopes, separated by commas, that may lose many policies or get a switch")
	f.BoolVar(&o.plan.split, "split", false, fmt.Sprintf("more than %d documents: write in several steps", maxBatch))
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	addWaitFlags(cmd, &o.wait)
	return cmd
}

func (a *app) apply(ctx context.Context, o *applyOptions) error {
	objects, err := a.load(o.files)
	if err != nil {
		return err
	}
	if len(objects) == 0 {
		return failf(exitRefused, "refused", "there are no documents in %s", shownNames(o.files)).hint("Nothing was changed.")
	}
	o.plan.objects, o.plan.pinned = objects, !o.rebase
	if !o.dryRun {
		if err := a.banner(); err != nil {
			return err
		}
	}
	p, err := a.makePlan(ctx, &o.plan)
	if err != nil {
		return err
	}
	if o.dryRun {
		return a.showPlan(p, o.exitCode)
	}
	return a.carryOut(ctx, p, o.yes, &o.wait)
}

type changeView struct {
	Kind             string        `json:"kind"`
	Name             string        `json:"name"`
	Change           string        `json:"change"`
	Revision         int64         `json:"revision,omitempty"`
	PreviousRevision int64         `json:"previousRevision,omitempty"`
	Fields           []fieldView   `json:"fields,omitempty"`
	Findings         []findingView `json:"findings,omitempty"`
	Endpoints        int64         `json:"endpoints"`
	Instances        int64         `json:"instances"`
	HiddenBy         []string      `json:"hiddenBy,omitempty"`
}

type fieldView struct {
	Path   string `json:"path"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

type findingView struct {
	Code    string `json:"code"`
	Level   string `json:"level"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

type planView struct {
	envelope
	Revision int64        `json:"revision"`
	DryRun   bool         `json:"dryRun"`
	Changes  []changeView `json:"changes"`
	// Instances says where the change is in force, if the command waited for it.
	Instances *progressView  `json:"instances,omitempty"`
	Missing   []instanceView `json:"missing,omitempty"`
}

func (p *plan) view(dryRun bool) *planView {
	v := &planView{envelope: kind("Changes"), Revision: p.revision, DryRun: dryRun, Changes: []changeView{}}
	for _, r := range p.results {
		c := changeView{
			Kind: document.KindPolicy, Name: r.GetScope(), Change: enumWord(r.GetKind().String(), "CHANGE_KIND_"),
			Revision: r.GetRevision(), PreviousRevision: r.GetPreviousRevision(),
			Endpoints: r.GetEndpoints(), Instances: r.GetInstances(), HiddenBy: r.GetHiddenBy(),
		}
		for _, f := range r.GetFields() {
			c.Fields = append(c.Fields, fieldView{f.GetPath(), f.GetBefore(), f.GetAfter()})
		}
		for _, f := range r.GetFindings() {
			c.Findings = append(c.Findings, findingView{f.GetCode(), f.GetLevel(), f.GetPath(), f.GetMessage()})
		}
		v.Changes = append(v.Changes, c)
	}
	for _, s := range p.switches {
		change := "created"
		if s.preview.GetExisted() {
			change = "unchanged"
		}
		v.Changes = append(v.Changes, changeView{
			Kind: document.KindSwitch, Name: orDefault(s.object.Name(), s.preview.GetStatus().GetKillSwitch().GetId()), Change: change,
			Revision: s.preview.GetStatus().GetRevision(), Instances: s.preview.GetPreview().GetInstances(),
		})
	}
	return v
}

// showPlan prints what would change.
func (a *app) showPlan(p *plan, exitCode bool) error {
	t := p.tally()
	if a.global.output == asName {
		for _, c := range p.view(true).Changes {
			if c.Change != "unchanged" {
				a.out.printf("%s\n", clean(c.Name))
			}
		}
	} else {
		err := a.result("", p.view(true), func() {
			for _, line := range p.lines(&a.out) {
				a.out.printf("%s\n", line)
			}
			a.out.printf("%s. Nothing was written.\n", t)
		})
		if err != nil {
			return err
		}
	}
	if exitCode && t.differs() {
		return exitError(exitDifferent)
	}
	return nil
}

// carryOut shows a plan, asks, writes it, and waits until it is in force.
func (a *app) carryOut(ctx context.Context, p *plan, yes bool, w *waitFlags) error {
	t := p.tally()
	if a.human() {
		for _, line := range p.lines(&a.err) {
			a.say("%s\n", line)
		}
	}
	if !t.differs() {
		return a.unchanged(p)
	}
	if !yes {
		if err := a.confirm(ctx, "Apply ("+t.String()+")?", "--yes"); err != nil {
			return err
		}
	}
	revision, err := a.write(ctx, p)
	if err != nil {
		return err
	}
	if a.human() {
		a.done("%s %s, revision %d\n", a.out.green("✓"), summary(p, t), revision)
	}
	end, err := a.afterWrite(ctx, w, revision, fmt.Sprintf("revision %d", revision))
	if err != nil {
		return err
	}
	if !a.human() {
		v := p.view(false)
		v.Revision = revision
		if end != nil && end.last != nil {
			counted := viewProgress(end.progress())
			v.Instances, v.Missing = &counted, viewInstances(end.last.GetMissing())
		}
		if err := a.showWritten(v); err != nil {
			return err
		}
	}
	return a.reportWrite(end, revision)
}

func (a *app) showWritten(v *planView) error {
	if a.global.output == asName {
		for _, c := range v.Changes {
			a.out.printf("%s\n", clean(c.Name))
		}
		return nil
	}
	return a.result("", v, nil)
}

func (a *app) unchanged(p *plan) error {
	if !a.human() {
		return a.showWritten(p.view(false))
	}
	const most = 20
	changes := p.view(false).Changes
	if len(changes) > most {
		a.done("%d documents unchanged\n", len(changes))
		return nil
	}
	for _, c := range changes {
		a.done("%s %s unchanged\n", c.Kind, clean(c.Name))
	}
	return nil
}

func summary(p *plan, t tally) string {
	if len(p.results)+len(p.switches) == 1 {
		c := p.view(false).Changes[0]
		return c.Kind + " " + clean(c.Name) + " " + c.Change
	}
	return t.String()
}

// write sends the plan and returns the newest revision. Its results are those of the real
// writes then.
func (a *app) write(ctx context.Context, p *plan) (revision int64, err error) {
	results := slices.DeleteFunc(slices.Clone(p.results), func(r *policydv1.ChangeResult) bool {
		return r.GetKind() != policydv1.ChangeKind_CHANGE_KIND_UNCHANGED
	})
	written := 0
	for i, chunk := range p.chunks {
		chunk.DryRun = false
		resp, err := write(ctx, a, policydv1.AdminServiceClient.ApplyPolicies, chunk)
		if err != nil {
			return revision, partly(locate(err, p.objects), written, revision)
		}
		written += len(resp.GetResults())
		results = append(results, resp.GetResults()...)
		revision = max(revision, resp.GetRevision())
		if len(p.chunks) > 1 && a.human() {
			a.say("step %d of %d: %d documents, revision %d\n", i+1, len(p.chunks), len(resp.GetResults()), resp.GetRevision())
		}
	}
	p.results = results
	for i := range p.switches {
		s := &p.switches[i]
		s.request.DryRun = false
		started, err := write(ctx, a, policydv1.AdminServiceClient.StartSwitch, s.request)
		if err != nil {
			return revision, partly(err, written+i, revision)
		}
		s.preview = started
		revision = max(revision, started.GetStatus().GetRevision())
		if a.human() {
			k := started.GetStatus().GetKillSwitch()
			a.say("%s is on until %s\n", clean(k.GetId()), clock(k.GetExpiresAt().AsTime()))
		}
	}
	return revision, nil
}

// partly says what was saved before a later step failed.
func partly(err error, written int, revision int64) error {
	if written == 0 || revision == 0 {
		return err
	}
	return addHint(err, fmt.Sprintf("Saved before that: %d documents, up to revision %d. Running it again goes on from there.", written, revision))
}

func addHint(err error, hint string) error {
	if f, ok := err.(*failure); ok { //nolint:errorlint // failures are returned bare
		return f.hint("%s", hint)
	}
	return err
}
