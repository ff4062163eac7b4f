// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"errors"
	"fmt"
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

func TestEffective_names_the_origin_of_each_value(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.seed(t, doc(engine.Global, settings{engine.MaxAttempts: engine.Int(2), engine.BackoffBase: engine.Duration(100 * time.Millisecond)}),
			doc(payments, settings{engine.MaxAttempts: engine.Int(4)}))
		saved := wall()
		e, err := h.Effective(t.Context(), charges)
		require.NoError(t, err)
		v := valueOf(t, e, engine.MaxAttempts)
		require.Equal(t, engine.Int(4), v.Value)
		require.Equal(t, admin.Origin{From: "shop/payments", Revision: 2, By: alex.Actor, At: saved}, v.Origin)
		require.Equal(t, []string{"global", "built-in"}, []string{v.Shadows[0].Origin.From, v.Shadows[1].Origin.From})
		require.Equal(t, "global", valueOf(t, e, engine.BackoffBase).Origin.From)
		require.Equal(t, admin.Origin{From: "built-in"}, valueOf(t, e, engine.BackoffMax).Origin)

		_, err = h.Effective(t.Context(), "Shop")
		requireFault(t, err, fault.Invalid, "scope_invalid")
	})
}

func TestEffective_shows_what_each_switch_overrides(t *testing.T) {
	for name, tc := range map[string]struct {
		edit   func(*admin.StartRequest)
		field  engine.Field
		value  string
		shadow string
	}{
		"disable-retries":            {action(engine.DisableRetries), engine.MaxAttempts, "1", "3"},
		"tighten-budget ratio":       {tighten(250_000), engine.BudgetRatio, "0.025", "0.1"},
		"tighten-budget floor":       {tighten(250_000), engine.BudgetMinRetriesPerSecond, "0.05", "0.2"},
		"tighten-budget capacity":    {tighten(250_000), engine.BudgetTokensCapacity, "5", "20"},
		"force-open":                 {action(engine.ForceOpen), engine.BreakerEnabled, "forced-open", "true"},
		"force-open with a trickle":  {func(r *admin.StartRequest) { r.Spec.Action, r.Spec.Admit = engine.ForceOpen, 50_000 }, engine.BreakerEnabled, "forced-open, admits 0.05", "true"},
		"force-closed":               {action(engine.ForceClosed), engine.BreakerEnabled, "forced-closed", "true"},
		"disable-hedging":            {action(engine.DisableHedging), engine.HedgingEnabled, "false", "false"},
		"a switch of a wider scope":  {over(shop), engine.MaxAttempts, "1", "3"},
		"an exception of this scope": {func(r *admin.StartRequest) { r.Spec.Scope, r.Spec.Except = shop, []engine.Scope{charges} }, engine.MaxAttempts, "3", ""},
		"a switch elsewhere":         {over("media"), engine.MaxAttempts, "3", ""},
		"a part of the instances":    {func(r *admin.StartRequest) { r.Spec.Percent = 99 }, engine.MaxAttempts, "3", ""},
		"a drill":                    {func(r *admin.StartRequest) { r.Drill = true }, engine.MaxAttempts, "3", ""},
		"only sheddable calls":       {func(r *admin.StartRequest) { r.Spec.Criticality = engine.Sheddable }, engine.MaxAttempts, "3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			sw := h.start(t, named("a"), tc.edit)
			e, err := h.Effective(t.Context(), charges)
			require.NoError(t, err)
			v := valueOf(t, e, tc.field)
			require.Equal(t, tc.value, v.Value.String())
			if tc.shadow == "" {
				require.Equal(t, "built-in", v.Origin.From)
				return
			}
			require.Equal(t, admin.Origin{From: "switch a", Revision: policy.Revision(sw.Revision), By: alex.Actor, At: sw.CreatedAt}, v.Origin)
			require.Equal(t, tc.shadow, v.Shadows[0].Value.String())
			require.Equal(t, "a", e.Switches[0].ID)
		})
	}
}

func tighten(factor int64) func(*admin.StartRequest) {
	return func(r *admin.StartRequest) { r.Spec.Action, r.Spec.Factor = engine.TightenBudget, factor }
}

func TestEffective_the_strictest_switch_is_shown_whatever_the_order(t *testing.T) {
	for _, order := range [][]int64{{500_000, 250_000}, {250_000, 500_000}} {
		h := newHouse(t)
		for _, factor := range order {
			h.start(t, named(fmt.Sprint("f", factor)), tighten(factor))
		}
		h.start(t, named("closed"), action(engine.ForceClosed))
		h.start(t, named("open"), action(engine.ForceOpen))
		e, err := h.Effective(t.Context(), charges)
		require.NoError(t, err)
		require.Equal(t, "0.025", valueOf(t, e, engine.BudgetRatio).Value.String(), "not multiplied")
		require.Equal(t, "switch f250000", valueOf(t, e, engine.BudgetRatio).Origin.From)
		require.Equal(t, "switch open", valueOf(t, e, engine.BreakerEnabled).Origin.From)
		var ids []string
		for _, sw := range e.Switches {
			ids = append(ids, sw.ID)
		}
		require.Equal(t, []string{"open", "f250000", "f500000", "closed"}, ids)
	}
}

func TestApply_O_CL_08_an_edit_during_a_switch_says_so_and_counts_after_it(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.sweep(t, 1)
		at := h.seed(t, doc(payments, settings{engine.MaxAttempts: engine.Int(3)}))
		h.start(t, named("a"), lasting(10*time.Minute))
		attempts := func() admin.EffectiveValue {
			e, err := h.Effective(t.Context(), payments)
			require.NoError(t, err)
			return valueOf(t, e, engine.MaxAttempts)
		}
		time.Sleep(5 * time.Minute)
		result, err := h.Apply(t.Context(), sam, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(payments, settings{engine.MaxAttempts: engine.Int(5)}), at)}})
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, result.Results[0].HiddenBy)
		require.Equal(t, engine.Int(1), attempts().Value)
		require.Equal(t, engine.Int(5), attempts().Shadows[0].Value)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.Equal(t, engine.Int(5), attempts().Value, "lifted, not restored")
	})
}

func TestApply_hidden_only_by_what_hides_it(t *testing.T) {
	for name, tc := range map[string]struct {
		edit   func(*admin.StartRequest)
		change settings
		hidden bool
	}{
		"a breaker edit under disable-retries":             {action(engine.DisableRetries), settings{engine.BreakerConsecutiveFailures: engine.Int(9)}, false},
		"a budget edit under tighten-budget":               {tighten(0), settings{engine.BudgetRatio: ratio(0.05)}, true},
		"a breaker edit under force-open":                  {action(engine.ForceOpen), settings{engine.BreakerConsecutiveFailures: engine.Int(9)}, true},
		"a breaker edit under force-closed":                {action(engine.ForceClosed), settings{engine.BreakerConsecutiveFailures: engine.Int(9)}, true},
		"an attempts edit under force-closed":              {action(engine.ForceClosed), settings{engine.MaxAttempts: engine.Int(2)}, false},
		"an attempts edit under force-open":                {action(engine.ForceOpen), settings{engine.MaxAttempts: engine.Int(2)}, true},
		"a hedging edit under disable-hedging":             {action(engine.DisableHedging), settings{engine.HedgingMax: engine.Int(2)}, true},
		"an edit of an excepted scope":                     {func(r *admin.StartRequest) { r.Spec.Scope, r.Spec.Except = shop, []engine.Scope{payments} }, settings{engine.MaxAttempts: engine.Int(2)}, false},
		"an edit above the scope of the switch":            {over(charges), settings{engine.MaxAttempts: engine.Int(2)}, true},
		"an edit of calls that the switch does not select": {func(r *admin.StartRequest) { r.Spec.Criticality = engine.Sheddable }, settings{engine.MaxAttempts: engine.Int(2)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.start(t, named("a"), tc.edit)
			result, err := h.Apply(t.Context(), sam, admin.ApplyRequest{DryRun: true, Changes: []admin.PolicyChange{put(doc(payments, tc.change), 0)}})
			require.NoError(t, err)
			require.Equal(t, tc.hidden, len(result.Results[0].HiddenBy) > 0)
		})
	}
}

func TestPolicy_not_found_offers_what_is_near(t *testing.T) {
	h := newHouse(t)
	h.seed(t, doc(payments, settings{}), doc(charges, settings{}))
	_, err := h.Policy(t.Context(), "store/payments")
	f := faultOf(t, err, fault.NotFound, "policy_not_found")
	require.Contains(t, f.Hint, "shop/payments")
	_, err = h.Policy(t.Context(), "media")
	f = faultOf(t, err, fault.NotFound, "policy_not_found")
	require.Contains(t, f.Hint, "effective media")
}

func TestPolicies_selects_by_scope_and_labels(t *testing.T) {
	h := newHouse(t)
	labelled := doc(charges, settings{})
	labelled.Metadata.Labels = map[string]string{"tier": "1", "team": "pay"}
	h.seed(t, labelled, doc(payments, settings{}), doc("shop/payments2", settings{}), doc("media", settings{}), doc(shop, settings{}))
	list := func(scope engine.Scope, labels map[string]string) []engine.Scope {
		_, found, err := h.Policies(t.Context(), scope, labels)
		require.NoError(t, err)
		all := []engine.Scope{}
		for _, st := range found {
			all = append(all, st.Policy.Scope)
		}
		return all
	}
	require.Equal(t, []engine.Scope{"media", shop, payments, charges, "shop/payments2"}, list("", nil))
	require.Equal(t, []engine.Scope{payments, charges}, list(payments, nil))
	require.Equal(t, []engine.Scope{charges}, list("", map[string]string{"tier": "1"}))
	require.Empty(t, list("", map[string]string{"tier": "1", "team": "other"}))
}

func TestProgress_counts_each_instance_once(t *testing.T) {
	h := newHouse(t)
	at := int64(h.seed(t, doc(payments, settings{engine.MaxAttempts: engine.Int(2)})))
	h.connect("in-force", at, payments)
	h.connect("wider target", at, shop)
	h.connect("behind", at-1, charges).Wanted(at)
	h.connect("refused", at, payments).Confirmed(at, []fleet.Rejection{{Scope: string(payments), Revision: at, Field: "maxAttempts"}})
	h.connect("refused another", at, payments).Confirmed(at, []fleet.Rejection{{Scope: "shop", Revision: 1}})
	h.connect("stale", at-1, payments).Close()
	h.connect("elsewhere", at, "media")
	want := admin.Progress{Target: 6, InForce: 3, Behind: 1, Rejected: 1, Stale: 1}

	byRevision, err := h.Progress(t.Context(), admin.Subject{Revision: policy.Revision(at)})
	require.NoError(t, err)
	require.Equal(t, want, byRevision.Progress)
	var missing []string
	for _, in := range byRevision.Missing {
		missing = append(missing, in.ID)
	}
	require.Equal(t, []string{"behind", "refused", "stale"}, missing)

	st, err := h.Policy(t.Context(), payments)
	require.NoError(t, err)
	require.Equal(t, want, st.Progress)
	_, list, err := h.Policies(t.Context(), "", nil)
	require.NoError(t, err)
	require.Equal(t, want, list[0].Progress, "in lists too")
	e, err := h.Effective(t.Context(), charges)
	require.NoError(t, err)
	require.Equal(t, want, e.Progress)
}

func TestProgress_of_an_instance_that_rejects_more_than_it_can_name(t *testing.T) {
	h := newHouse(t)
	at := int64(h.seed(t, doc(payments, settings{})))
	named := make([]fleet.Rejection, fleet.MaxRejections)
	for i := range named {
		named[i] = fleet.Rejection{Scope: fmt.Sprint("shop/s", i), Revision: 1}
	}
	full, rest := h.connect("full", at, payments), h.connect("rest", at, payments)
	full.Confirmed(at, named)
	rest.Confirmed(at, named[1:])
	r, err := h.Progress(t.Context(), admin.Subject{Revision: policy.Revision(at)})
	require.NoError(t, err)
	require.Equal(t, admin.Progress{Target: 2, InForce: 1, Rejected: 1}, r.Progress, "this document may be among the others")
}

func TestProgress_after_a_restore_does_not_take_a_revision_for_what_it_was_before(t *testing.T) {
	h := newHouse(t)
	at := h.seed(t, doc(payments, settings{}))
	h.connect("payments", int64(at), payments)
	h.connect("media", int64(at)-1, "media").Wanted(int64(at))
	restored := *h.store.Memory.View()
	restored.Epoch = "another"
	restored.Policies = map[engine.Scope]*policy.Policy{"media": {Scope: "media", Revision: at}}
	h.store.lag.Store(&restored)
	r, err := h.Progress(t.Context(), admin.Subject{Revision: at})
	require.NoError(t, err)
	require.Equal(t, admin.Progress{Target: 1, Behind: 1}, r.Progress)
}

func TestProgress_of_a_deletion(t *testing.T) {
	h := newHouse(t)
	at := h.seed(t, doc(payments, settings{}))
	result, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Deletions: []admin.PolicyDeletion{{Scope: payments, Expected: rev(at)}}, Confirm: "shop"})
	require.NoError(t, err)
	s := h.connect("cart-1", int64(at), payments)
	h.connect("media-1", int64(at), "media")

	progress := func(service *admin.Service) admin.Progress {
		r, err := service.Progress(t.Context(), admin.Subject{Revision: result.Revision})
		require.NoError(t, err)
		return r.Progress
	}
	require.Equal(t, admin.Progress{Target: 1, Behind: 1}, progress(h.Service), "known before it is pushed")
	s.Wanted(int64(result.Revision))
	require.Equal(t, admin.Progress{Target: 1, Behind: 1}, progress(h.another()), "another replica knows once it was pushed")
	s.Confirmed(int64(result.Revision), nil)
	require.Equal(t, admin.Progress{Target: 1, InForce: 1}, progress(h.Service))
	require.Equal(t, admin.Progress{Target: 1, InForce: 1}, progress(h.another()))
}

func TestProgress_of_nothing(t *testing.T) {
	h := newHouse(t)
	_, err := h.Progress(t.Context(), admin.Subject{})
	requireFault(t, err, fault.Invalid, "subject_missing")
	_, err = h.Progress(t.Context(), admin.Subject{SwitchID: "zz"})
	requireFault(t, err, fault.NotFound, "switch_not_found")
}

func TestProgress_a_drill_counts_only_instances_that_take_part(t *testing.T) {
	h := newHouse(t)
	h.connect("ordinary", 1, payments)
	h.fleet.Connect(fleet.Identity{ID: "drilled", Targets: []engine.Scope{payments}, Drill: true}, 1, false)
	sw := h.start(t, func(r *admin.StartRequest) { r.Drill = true })
	st, err := h.Switch(t.Context(), sw.ID)
	require.NoError(t, err)
	require.Equal(t, 1, st.Progress.Target)
}

func TestProgress_forgets_instances_that_are_gone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.seed(t, doc(payments, settings{}))
		h.connect("cart-1", 1, payments).Close()
		progress := func() int {
			st, err := h.Policy(t.Context(), payments)
			require.NoError(t, err)
			return st.Progress.Target
		}
		time.Sleep(fleet.GoneAfter - time.Second)
		require.Equal(t, 1, progress())
		time.Sleep(2 * time.Second)
		require.Zero(t, progress())
		status, err := h.Status(t.Context(), "")
		require.NoError(t, err)
		require.Zero(t, status.Fleet.Target)
	})
}

func TestWatchProgress_reports_changes_and_gathers_them(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		at := int64(h.seed(t, doc(payments, settings{engine.MaxAttempts: engine.Int(2)})))
		var sessions []*fleet.Session
		for i := range 20 {
			sessions = append(sessions, h.connect(fmt.Sprintf("cart-%02d", i), at-1, payments))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var seen []admin.ProgressReport
		done := make(chan error, 1)
		go func() {
			done <- h.WatchProgress(ctx, nil, admin.Subject{Revision: policy.Revision(at)}, func(r admin.ProgressReport) error {
				seen = append(seen, r)
				return nil
			})
		}()
		synctest.Wait()
		require.Len(t, seen, 1)
		require.Equal(t, admin.Progress{Target: 20, Behind: 20}, seen[0].Progress)

		start := time.Now()
		for _, s := range sessions {
			s.Confirmed(at, nil)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		last := seen[len(seen)-1]
		require.Equal(t, admin.Progress{Target: 20, InForce: 20}, last.Progress)
		require.Empty(t, last.Missing)
		require.LessOrEqual(t, len(seen)-1, int(time.Since(start)/(50*time.Millisecond)))
		require.Less(t, len(seen), 8, "200 ms of changes make a handful of reports")
		n := len(seen)
		time.Sleep(time.Hour)
		require.Len(t, seen, n, "silence while nothing changes")
		cancel()
		require.NoError(t, <-done)
	})
}

func TestWatchProgress_ends_with_its_reader_and_with_the_server(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		at := h.seed(t, doc(payments, settings{}))
		broken := errors.New("reader is gone")
		require.ErrorIs(t, h.WatchProgress(t.Context(), nil, admin.Subject{Revision: at}, func(admin.ProgressReport) error { return broken }), broken)

		stop := make(chan struct{})
		close(stop)
		require.NoError(t, h.WatchProgress(t.Context(), stop, admin.Subject{Revision: at}, func(admin.ProgressReport) error { return nil }))
	})
}

func TestStatus_at_a_glance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		at := int64(h.seed(t, doc(payments, settings{})))
		h.start(t, named("pay"))
		h.start(t, named("media"), over("media"))
		h.connect("cart-1", at+2, shop).Reported(&fleet.Report{Period: 10 * time.Second, Endpoints: []fleet.EndpointReport{
			{Endpoint: string(charges), Calls: 100, Attempts: 120, Rescued: 10, Rejected: 10, Breaker: "open", Suppressed: map[string]int64{"budget_exhausted": 30}},
			{Endpoint: "api.example.com", Calls: 50, Attempts: 50, Breaker: "closed", Unmatched: true},
		}})
		h.connect("cart-2", at+2, shop).Reported(&fleet.Report{Period: 10 * time.Second, Endpoints: []fleet.EndpointReport{
			{Endpoint: string(charges), Calls: 100, Attempts: 100, Breaker: "closed"},
		}})
		h.connect("media-1", at, "media").Wanted(at + 2)

		st, err := h.Status(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, admin.Progress{Target: 3, InForce: 2, Behind: 1}, st.Fleet)
		require.Len(t, st.Switches, 2)
		require.InDelta(t, 25, st.Traffic.Calls, 1e-9)
		require.InDelta(t, 27, st.Traffic.Attempts, 1e-9)
		require.InDelta(t, 3, st.Traffic.Retries, 1e-9)
		require.InDelta(t, 1, st.Traffic.Rescued, 1e-9)
		require.InDelta(t, 3, st.Traffic.Suppressed["budget_exhausted"], 1e-9)
		require.Equal(t, []admin.BreakerSummary{{Endpoint: string(charges), States: map[string]int{"open": 1, "closed": 1}}}, st.Breakers)
		require.Equal(t, "test", st.Version)
		require.Equal(t, h.store.View().Epoch, st.Epoch)

		st, err = h.Status(t.Context(), "media")
		require.NoError(t, err)
		require.Equal(t, 1, st.Fleet.Target)
		require.Len(t, st.Switches, 1)
		require.Zero(t, st.Traffic.Calls)

		time.Sleep(time.Minute)
		st, err = h.Status(t.Context(), "")
		require.NoError(t, err)
		require.Zero(t, st.Traffic.Calls, "a report of a minute ago says nothing of now")
	})
}

func TestInstances_filters(t *testing.T) {
	h := newHouse(t)
	at := int64(h.seed(t, doc(payments, settings{})))
	h.connect("live", at, payments)
	h.connect("behind", at-1, payments).Wanted(at)
	h.connect("elsewhere", at, "media").Close()
	ids := func(f admin.InstanceFilter) []string {
		list, err := h.Instances(t.Context(), f)
		require.NoError(t, err)
		all := []string{}
		for _, in := range list.Instances {
			all = append(all, in.ID)
		}
		return all
	}
	require.Equal(t, []string{"behind", "elsewhere", "live"}, ids(admin.InstanceFilter{}))
	require.Equal(t, []string{"behind", "live"}, ids(admin.InstanceFilter{Scope: shop}))
	require.Equal(t, []string{"behind", "elsewhere"}, ids(admin.InstanceFilter{NotInForce: true}))
	require.Equal(t, []string{"elsewhere"}, ids(admin.InstanceFilter{State: fleet.Stale}))
	require.Len(t, ids(admin.InstanceFilter{Service: "shop/cart"}), 3)
	require.Empty(t, ids(admin.InstanceFilter{Service: "shop/search"}))
	_, err := h.Instance(t.Context(), "zz")
	requireFault(t, err, fault.NotFound, "instance_not_found")
	in, err := h.Instance(t.Context(), "live")
	require.NoError(t, err)
	require.Equal(t, at, in.Revision)
}
