// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// wanted is a valid request, changed by edit.
func wanted(edit ...func(*admin.StartRequest)) admin.StartRequest {
	req := admin.StartRequest{
		Spec: engine.Switch{
			Action: engine.DisableRetries, Scope: payments, Percent: 100, Restore: 2 * time.Minute,
			Reason: "brown-out", Incident: "INC-1",
		},
		ExpiresIn: 30 * time.Minute,
	}
	for _, e := range edit {
		e(&req)
	}
	return req
}

func (h *house) start(t *testing.T, edit ...func(*admin.StartRequest)) *policy.Switch {
	t.Helper()
	result, err := h.StartSwitch(t.Context(), alex, wanted(edit...))
	require.NoError(t, err)
	return result.Status.Switch
}

func named(id string) func(*admin.StartRequest) {
	return func(r *admin.StartRequest) { r.ID = id }
}

func lasting(d time.Duration) func(*admin.StartRequest) {
	return func(r *admin.StartRequest) { r.ExpiresIn = d }
}

func over(scope engine.Scope) func(*admin.StartRequest) {
	return func(r *admin.StartRequest) { r.Spec.Scope = scope }
}

func action(a engine.Action) func(*admin.StartRequest) {
	return func(r *admin.StartRequest) { r.Spec.Action = a }
}

func TestStartSwitch_writes_one_document_and_one_record(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		now := wall()
		result, err := h.StartSwitch(t.Context(), alex, wanted())
		require.NoError(t, err)
		sw := result.Status.Switch
		require.Regexp(t, `^ks-[0-9a-f]{4,}$`, sw.ID)
		require.Equal(t, policy.PhaseActive, sw.Phase)
		require.Equal(t, now.Add(30*time.Minute), sw.Ends)
		require.Equal(t, 30*time.Minute, result.Status.Left)
		require.Equal(t, alex.Actor, sw.CreatedBy)
		require.EqualValues(t, 2, sw.Revision)
		require.False(t, result.Existed)

		stored := h.store.View().Switches[sw.ID]
		require.Equal(t, stored, sw)
		entries := h.store.entries("switch.start")
		require.Len(t, entries, 1)
		require.Equal(t, sw.ID, entries[0].SwitchID)
		require.Equal(t, "INC-1", entries[0].Incident)
		require.Equal(t, "brown-out", entries[0].Reason)
		require.Equal(t, []engine.Scope{payments}, entries[0].Scopes)
		require.Empty(t, entries[0].Changes[0].Before)
		require.Contains(t, entries[0].Changes[0].After, `"action":"disable-retries"`)
	})
}

func TestStartSwitch_dry_run_previews_and_writes_nothing(t *testing.T) {
	h := newHouse(t)
	h.connect("cart-1", 1, shop)
	result, err := h.StartSwitch(t.Context(), alex, wanted(func(r *admin.StartRequest) { r.DryRun = true }))
	require.NoError(t, err)
	require.Equal(t, 1, result.Preview.Instances)
	require.Zero(t, result.Status.Switch.Revision)
	require.Empty(t, h.store.commits)
}

func TestStartSwitch_rules(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*admin.StartRequest)
		path string // of the violation; "": none, accepted
	}{
		"every default":                      {func(*admin.StartRequest) {}, ""},
		"no end":                             {lasting(0), "expiresAt"},
		"an end in the past":                 {func(r *admin.StartRequest) { r.ExpiresIn, r.ExpiresAt = 0, time.Now().Add(-time.Second) }, "expiresAt"},
		"a negative time":                    {lasting(-time.Minute), "expiresAt"},
		"both kinds of end":                  {func(r *admin.StartRequest) { r.ExpiresAt = time.Now().Add(time.Hour) }, "expiresIn"},
		"an absolute end":                    {func(r *admin.StartRequest) { r.ExpiresIn, r.ExpiresAt = 0, time.Now().Add(time.Hour) }, ""},
		"24 hours":                           {lasting(24 * time.Hour), ""},
		"more than 24 hours":                 {lasting(24*time.Hour + time.Second), "expiresAt"},
		"more than 24 hours by the clock":    {func(r *admin.StartRequest) { r.ExpiresIn, r.ExpiresAt = 0, time.Now().Add(25*time.Hour) }, "expiresAt"},
		"no reason":                          {func(r *admin.StartRequest) { r.Spec.Reason = "  " }, "spec.reason"},
		"a novel as reason":                  {func(r *admin.StartRequest) { r.Spec.Reason = strings.Repeat("x", 2000) }, "spec.reason"},
		"no incident below global":           {func(r *admin.StartRequest) { r.Spec.Incident = "" }, ""},
		"an unknown action":                  {action("explode"), "spec.action"},
		"a bad scope":                        {over("Shop"), "spec.scope"},
		"an exception outside":               {func(r *admin.StartRequest) { r.Spec.Except = []engine.Scope{"media"} }, "spec.except"},
		"an exception of everything":         {func(r *admin.StartRequest) { r.Spec.Except = []engine.Scope{payments} }, "spec.except"},
		"an exception inside":                {func(r *admin.StartRequest) { r.Spec.Except = []engine.Scope{charges} }, ""},
		"0 percent":                          {func(r *admin.StartRequest) { r.Spec.Percent = 0 }, "spec.percent"},
		"101 percent":                        {func(r *admin.StartRequest) { r.Spec.Percent = 101 }, "spec.percent"},
		"1 percent":                          {func(r *admin.StartRequest) { r.Spec.Percent = 1 }, ""},
		"a negative restore":                 {func(r *admin.StartRequest) { r.Spec.Restore = -1 }, "spec.restore.over"},
		"no restore":                         {func(r *admin.StartRequest) { r.Spec.Restore = 0 }, ""},
		"a factor for another action":        {func(r *admin.StartRequest) { r.Spec.Factor = 250_000 }, "spec.factor"},
		"a factor above 1":                   {func(r *admin.StartRequest) { r.Spec.Action, r.Spec.Factor = engine.TightenBudget, 1_000_001 }, "spec.factor"},
		"no factor for tighten-budget":       {func(r *admin.StartRequest) { r.Spec.Action, r.FactorAbsent = engine.TightenBudget, true }, "spec.factor"},
		"factor 0":                           {action(engine.TightenBudget), ""},
		"admit for another action":           {func(r *admin.StartRequest) { r.Spec.Admit = 1 }, "spec.admit"},
		"admit above 1":                      {func(r *admin.StartRequest) { r.Spec.Action, r.Spec.Admit = engine.ForceOpen, 1_000_001 }, "spec.admit"},
		"force-open with a trickle":          {func(r *admin.StartRequest) { r.Spec.Action, r.Spec.Admit = engine.ForceOpen, 50_000 }, ""},
		"force-closed for an hour":           {func(r *admin.StartRequest) { r.Spec.Action, r.ExpiresIn = engine.ForceClosed, time.Hour }, ""},
		"force-closed for more than an hour": {func(r *admin.StartRequest) { r.Spec.Action, r.ExpiresIn = engine.ForceClosed, time.Hour+time.Second }, "expiresAt"},
		"force-closed on global": {func(r *admin.StartRequest) {
			r.Spec.Action, r.Spec.Scope, r.Confirm = engine.ForceClosed, "global", "global"
		}, "spec.scope"},
		"force-closed on global, not confirmed": {func(r *admin.StartRequest) { r.Spec.Action, r.Spec.Scope = engine.ForceClosed, "global" }, "spec.scope"},
		"an id with a slash":                    {named("inc/1"), "id"},
		"an id of 64 letters":                   {named(strings.Repeat("a", 64)), "id"},
		"disable-hedging":                       {action(engine.DisableHedging), ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			_, err := h.StartSwitch(t.Context(), alex, wanted(tc.edit))
			if tc.path == "" {
				require.NoError(t, err)
				require.Len(t, h.store.View().Switches, 1)
				return
			}
			f := faultOf(t, err, fault.Invalid, "switch_invalid")
			require.Equal(t, tc.path, f.Violations[0].Path, "%v", f.Violations)
			require.Empty(t, h.store.commits)
		})
	}
}

func TestStartSwitch_global_needs_incident_and_confirmation(t *testing.T) {
	for name, tc := range map[string]struct {
		incident, confirm string
		refused           bool
	}{
		"neither":              {"", "", true},
		"only an incident":     {"INC-1", "", true},
		"only a confirmation":  {"", "global", true},
		"the wrong name typed": {"INC-1", "globl", true},
		"both":                 {"INC-1", "global", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			for _, dry := range []bool{true, false} {
				_, err := h.StartSwitch(t.Context(), alex, wanted(over("global"), func(r *admin.StartRequest) {
					r.Spec.Incident, r.Confirm, r.DryRun = tc.incident, tc.confirm, dry
				}))
				if !tc.refused {
					require.NoError(t, err)
					continue
				}
				f := faultOf(t, err, fault.Refused, "global_unconfirmed")
				require.Equal(t, "a global switch needs --confirm=global and --incident", f.Message)
				require.Empty(t, h.store.commits)
			}
		})
	}
}

func TestStartSwitch_the_same_id_again(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		first := h.start(t, named("inc-1"))
		time.Sleep(time.Minute)

		again, err := h.StartSwitch(t.Context(), sam, wanted(named("inc-1")))
		require.NoError(t, err)
		require.True(t, again.Existed)
		require.Equal(t, first, again.Status.Switch, "as it was started, with its own end")
		require.Equal(t, 29*time.Minute, again.Status.Left)
		require.Len(t, h.store.commits, 1)

		_, err = h.StartSwitch(t.Context(), sam, wanted(named("inc-1"), over(shop)))
		requireFault(t, err, fault.Conflict, "switch_differs")

		_, _, err = h.RevertSwitches(t.Context(), sam, admin.RevertRequest{IDs: []string{"inc-1"}})
		require.NoError(t, err)
		_, err = h.StartSwitch(t.Context(), sam, wanted(named("inc-1")))
		requireFault(t, err, fault.Conflict, "switch_ended")
		require.Len(t, h.store.commits, 2)
	})
}

func TestStartSwitch_two_with_one_id_at_once_make_one(t *testing.T) {
	for range 30 {
		h := newHouse(t)
		var both sync.WaitGroup
		both.Add(2)
		h.store.before = func(policy.Transaction) error {
			both.Done()
			both.Wait()
			return nil
		}
		type outcome struct {
			result *admin.StartResult
			err    error
		}
		outcomes := make(chan outcome, 2)
		for range 2 {
			go func() {
				r, err := h.StartSwitch(t.Context(), alex, wanted(named("inc-1")))
				outcomes <- outcome{r, err}
			}()
		}
		a, b := <-outcomes, <-outcomes
		require.NoError(t, a.err)
		require.NoError(t, b.err)
		require.NotEqual(t, a.result.Existed, b.result.Existed)
		require.Len(t, h.store.entries("switch.start"), 1)
	}
}

func TestStartSwitch_at_most_1000_active(t *testing.T) {
	h := newHouse(t)
	view := *h.store.View()
	view.Switches = make(map[string]*policy.Switch)
	for i := range engine.MaxActiveSwitches {
		id := fmt.Sprint("s", i)
		view.Switches[id] = &policy.Switch{Switch: engine.Switch{ID: id, Scope: "media", Ends: time.Now().Add(time.Hour)}, Phase: policy.PhaseActive}
	}
	h.store.lag.Store(&view)
	_, err := h.StartSwitch(t.Context(), alex, wanted())
	requireFault(t, err, fault.Exhausted, "too_many_switches")
	view.Switches["s0"].Phase = policy.PhaseRestoring
	_, err = h.StartSwitch(t.Context(), alex, wanted())
	require.NoError(t, err)
}

func TestPreview_says_what_a_switch_would_do(t *testing.T) {
	h := newHouse(t)
	sheddable := doc("shop/payments/report.list", settings{})
	sheddable.Metadata.Labels = map[string]string{"criticality": "sheddable"}
	h.seed(t, sheddable, doc(payments, settings{engine.BudgetRatio: ratio(0.1), engine.BudgetMinRetriesPerSecond: ratio(0)}))
	report := func() *fleet.Report {
		return &fleet.Report{Period: 10 * time.Second, Endpoints: []fleet.EndpointReport{
			{Endpoint: string(charges), Calls: 1000, Attempts: 1100, Rescued: 20, Rejected: 100}, // 90 firsts, 20 retries per second
			{Endpoint: "shop/payments/report.list", Calls: 500, Attempts: 550},
			{Endpoint: "shop/search/query", Calls: 9000, Attempts: 9900},
		}}
	}
	h.connect("cart-1", 2, shop).Reported(report())
	h.connect("cart-2", 2, payments).Reported(report())
	gone := h.connect("billing-0", 2, payments)
	gone.Reported(report())
	gone.Close()
	h.connect("media-1", 2, "media")
	h.start(t, named("other"), over(shop))
	h.start(t, named("elsewhere"), over("media"))

	preview := func(edit ...func(*admin.StartRequest)) admin.SwitchPreview {
		result, err := h.StartSwitch(t.Context(), alex, wanted(append(edit, func(r *admin.StartRequest) { r.DryRun = true })...))
		require.NoError(t, err)
		return result.Preview
	}
	p := preview()
	require.Equal(t, 3, p.Instances)
	require.Equal(t, map[string]int{"shop/cart": 3}, p.Services)
	require.Equal(t, []string{"billing-0"}, p.Unreached)
	require.Equal(t, []string{"other"}, p.Overlaps)
	require.InDelta(t, 300, p.CallsPerSecond, 1e-9, "two live instances, both endpoints")
	require.InDelta(t, 50, p.StopsPerSecond, 1e-9)
	require.InDelta(t, 4.0/300, p.RescuedShare, 1e-9)

	p = preview(func(r *admin.StartRequest) { r.Spec.Except = []engine.Scope{charges} })
	require.InDelta(t, 100, p.CallsPerSecond, 1e-9)
	p = preview(func(r *admin.StartRequest) { r.Spec.Criticality = engine.Sheddable })
	require.InDelta(t, 100, p.CallsPerSecond, 1e-9, "only the endpoint labelled so")

	p = preview(action(engine.ForceOpen))
	require.InDelta(t, 280, p.StopsPerSecond, 1e-9, "all first attempts")
	p = preview(func(r *admin.StartRequest) { r.Spec.Action, r.Spec.Admit = engine.ForceOpen, 250_000 })
	require.InDelta(t, 210, p.StopsPerSecond, 1e-9)

	// charges: 20 retries/s, a tenth of 100 calls/s allowed, a quarter of it left: 17.5 stop.
	// report: 5 retries/s, of 5 allowed 1.25 are left: 3.75 stop.
	p = preview(func(r *admin.StartRequest) { r.Spec.Action, r.Spec.Factor = engine.TightenBudget, 250_000 })
	require.InDelta(t, 2*(17.5+3.75), p.StopsPerSecond, 1e-9)
	require.Zero(t, preview(func(r *admin.StartRequest) { r.Spec.Action, r.ExpiresIn = engine.ForceClosed, time.Hour }).StopsPerSecond)
}

func TestPreview_percent_selects_instances(t *testing.T) {
	h := newHouse(t)
	for i := range 400 {
		h.connect(fmt.Sprint("cart-", i), 1, payments)
	}
	result, err := h.StartSwitch(t.Context(), alex, wanted(named("tenth"), func(r *admin.StartRequest) { r.Spec.Percent = 10 }))
	require.NoError(t, err)
	require.InDelta(t, 40, result.Preview.Instances, 25)
	require.Equal(t, result.Preview.Instances, result.Status.Progress.Target)
}

func TestSwitches_filters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t, named("short"), lasting(5*time.Minute))
		h.start(t, named("long"), lasting(time.Hour), func(r *admin.StartRequest) { r.Spec.Incident = "INC-2" })
		h.start(t, named("media"), lasting(2*time.Hour), over("media"))
		h.start(t, named("done"))
		_, _, err := h.RevertSwitches(t.Context(), alex, admin.RevertRequest{IDs: []string{"done"}})
		require.NoError(t, err)
		go func() { _ = h.RunSweeper(t.Context()) }()
		time.Sleep(3 * time.Minute)

		ids := func(f admin.SwitchFilter) []string {
			_, found, err := h.Switches(t.Context(), f)
			require.NoError(t, err)
			all := []string{}
			for _, st := range found {
				all = append(all, st.Switch.ID)
			}
			return all
		}
		require.Equal(t, []string{"short", "long", "media", "done"}, ids(admin.SwitchFilter{}))
		require.Equal(t, []string{"short", "long", "media"}, ids(admin.SwitchFilter{Active: true}))
		require.Equal(t, []string{"done"}, ids(admin.SwitchFilter{Ended: true}))
		require.Equal(t, []string{"short"}, ids(admin.SwitchFilter{Within: 10 * time.Minute}))
		require.Equal(t, []string{"long"}, ids(admin.SwitchFilter{Incident: "INC-2"}))
		require.Equal(t, []string{"short", "long", "done"}, ids(admin.SwitchFilter{Scope: shop}))
		require.Empty(t, ids(admin.SwitchFilter{Scope: charges}))
		_, _, err = h.Switches(t.Context(), admin.SwitchFilter{Scope: "Not/A/Scope"})
		requireFault(t, err, fault.Invalid, "scope_invalid")

		st, err := h.Switch(t.Context(), "done")
		require.NoError(t, err)
		require.Equal(t, policy.PhaseReverted, st.Switch.Phase)
		require.Zero(t, st.Left)
		_, err = h.Switch(t.Context(), "never")
		requireFault(t, err, fault.NotFound, "switch_not_found")
	})
}

func TestExtendSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		sw := h.start(t, named("a"), lasting(10*time.Minute))
		time.Sleep(4 * time.Minute)
		st, err := h.ExtendSwitch(t.Context(), sam, "a", 30*time.Minute)
		require.NoError(t, err)
		require.Equal(t, sw.Ends.Add(30*time.Minute), st.Switch.Ends, "from the present end")
		require.Equal(t, 36*time.Minute, st.Left)
		require.Equal(t, alex.Actor, st.Switch.CreatedBy)
		require.Equal(t, sam.Actor, st.Switch.UpdatedBy)
		require.Equal(t, h.store.View().Switches["a"], st.Switch)
		require.Len(t, h.store.entries("switch.extend"), 1)

		_, err = h.ExtendSwitch(t.Context(), sam, "a", 24*time.Hour)
		requireFault(t, err, fault.Invalid, "switch_invalid")
		_, err = h.ExtendSwitch(t.Context(), sam, "a", 24*time.Hour-36*time.Minute)
		require.NoError(t, err, "24 h from now is the limit, not from the start")
		_, err = h.ExtendSwitch(t.Context(), sam, "a", 0)
		requireFault(t, err, fault.Invalid, "extension_invalid")
		_, err = h.ExtendSwitch(t.Context(), sam, "b", time.Hour)
		requireFault(t, err, fault.NotFound, "switch_not_found")

		h.start(t, named("closed"), action(engine.ForceClosed), lasting(50*time.Minute))
		_, err = h.ExtendSwitch(t.Context(), sam, "closed", 20*time.Minute)
		requireFault(t, err, fault.Invalid, "switch_invalid")

		// Ended, but not swept yet: counted from now.
		h.start(t, named("late"), lasting(time.Minute))
		time.Sleep(2 * time.Minute)
		st, err = h.ExtendSwitch(t.Context(), sam, "late", time.Minute)
		require.NoError(t, err)
		require.Equal(t, time.Minute, st.Left)

		_, _, err = h.RevertSwitches(t.Context(), sam, admin.RevertRequest{IDs: []string{"a"}})
		require.NoError(t, err)
		_, err = h.ExtendSwitch(t.Context(), sam, "a", time.Hour)
		requireFault(t, err, fault.Refused, "switch_ended")
	})
}

func TestRevertSwitches_by_each_selector(t *testing.T) {
	for name, tc := range map[string]struct {
		req  admin.RevertRequest
		want []string
	}{
		"ids":      {admin.RevertRequest{IDs: []string{"a", "c", "a"}}, []string{"a", "c"}},
		"incident": {admin.RevertRequest{Incident: "INC-2"}, []string{"b"}},
		"scope":    {admin.RevertRequest{Scope: shop}, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t)
				h.start(t, named("a"))
				h.start(t, named("b"), func(r *admin.StartRequest) { r.Spec.Incident = "INC-2" })
				h.start(t, named("c"), over("media"))
				time.Sleep(time.Minute)
				now := wall()
				revision, found, err := h.RevertSwitches(t.Context(), sam, tc.req)
				require.NoError(t, err)
				require.Equal(t, h.store.View().Revision, revision)
				var ids []string
				for _, st := range found {
					ids = append(ids, st.Switch.ID)
					require.Equal(t, policy.PhaseRestoring, st.Switch.Phase)
					require.Equal(t, now, st.Switch.Ends)
					require.Equal(t, now, st.Switch.EndedAt)
					require.EqualValues(t, revision, st.Switch.Revision)
					require.Zero(t, st.Left)
				}
				require.ElementsMatch(t, tc.want, ids)
				require.Len(t, h.store.entries("switch.revert"), 1, "one transaction, one record")

				again, found, err := h.RevertSwitches(t.Context(), sam, admin.RevertRequest{IDs: tc.want})
				require.NoError(t, err, "reverting twice is no error")
				require.Zero(t, again)
				require.Len(t, found, len(tc.want))
				require.Len(t, h.store.entries("switch.revert"), 1)
			})
		})
	}
}

func TestRevertSwitches_refuses(t *testing.T) {
	h := newHouse(t)
	h.start(t, named("a"))
	many := make([]string, 101)
	for name, tc := range map[string]struct {
		req    admin.RevertRequest
		kind   fault.Kind
		reason string
	}{
		"no selector":            {admin.RevertRequest{}, fault.Invalid, "selection_invalid"},
		"two selectors":          {admin.RevertRequest{Incident: "x", Scope: shop}, fault.Invalid, "selection_invalid"},
		"an unknown id":          {admin.RevertRequest{IDs: []string{"a", "zz"}}, fault.NotFound, "switch_not_found"},
		"an incident without":    {admin.RevertRequest{Incident: "INC-9"}, fault.NotFound, "switch_not_found"},
		"a scope without":        {admin.RevertRequest{Scope: "media"}, fault.NotFound, "switch_not_found"},
		"a bad scope":            {admin.RevertRequest{Scope: "A"}, fault.Invalid, "scope_invalid"},
		"more than fit one step": {admin.RevertRequest{IDs: many}, fault.Refused, "batch_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := h.RevertSwitches(t.Context(), sam, tc.req)
			requireFault(t, err, tc.kind, tc.reason)
			require.Len(t, h.store.commits, 1, "all or none")
		})
	}
}

func TestRevertSwitches_decides_again_when_another_writer_was_faster(t *testing.T) {
	h := newHouse(t)
	h.start(t, named("a"))
	interfere := true
	h.store.before = func(policy.Transaction) error {
		if interfere {
			interfere = false
			_, err := h.another().ExtendSwitch(t.Context(), alex, "a", time.Hour)
			return err
		}
		return nil
	}
	_, found, err := h.RevertSwitches(t.Context(), sam, admin.RevertRequest{IDs: []string{"a"}})
	require.NoError(t, err)
	require.Equal(t, policy.PhaseRestoring, found[0].Switch.Phase)
	require.Len(t, h.store.entries("switch.extend"), 1)
	require.Len(t, h.store.entries("switch.revert"), 1)
}

func TestRevertSwitches_gives_up_on_a_store_without_quorum(t *testing.T) {
	h := newHouse(t)
	h.start(t, named("a"))
	h.store.before = func(policy.Transaction) error { return fault.New(fault.Unavailable, "no_quorum", "no leader") }
	_, _, err := h.RevertSwitches(t.Context(), sam, admin.RevertRequest{IDs: []string{"a"}})
	requireFault(t, err, fault.Unavailable, "no_quorum")
	var moved *policy.ConflictError
	require.False(t, errors.As(err, &moved))
}
