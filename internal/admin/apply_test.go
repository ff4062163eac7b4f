// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestApply_creates_changes_and_deletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.seed(t, doc(shop, settings{engine.MaxAttempts: engine.Int(2)}), doc(payments, settings{engine.Observe: engine.Bool(true)}),
			doc("other", settings{engine.MaxAttempts: engine.Int(2)}))
		created := wall()
		time.Sleep(time.Minute)

		p := doc(shop, settings{engine.MaxAttempts: engine.Int(4)})
		p.Metadata.Owner = "team-shop"
		p.Metadata.CreatedBy = policy.Actor{Name: "mallory"} // the server's business
		result, err := h.Apply(t.Context(), sam, admin.ApplyRequest{
			Changes:   []admin.PolicyChange{put(p, 2), put(doc(charges, settings{engine.MaxAttempts: engine.Int(1)}), 0)},
			Deletions: []admin.PolicyDeletion{{Scope: payments, Expected: rev(2)}},
			Confirm:   "shop", Reason: "vendor moved",
		})
		require.NoError(t, err)
		require.Equal(t, policy.Revision(3), result.Revision)

		kinds := map[engine.Scope]admin.ChangeKind{}
		for _, r := range result.Results {
			kinds[r.Scope] = r.Kind
		}
		require.Equal(t, map[engine.Scope]admin.ChangeKind{shop: admin.Changed, charges: admin.Created, payments: admin.Deleted}, kinds)
		require.Equal(t, policy.Revision(2), result.Results[0].Previous)
		require.Equal(t, []policy.FieldChange{
			{Path: "maxAttempts", Before: "2", After: "4"}, {Path: "metadata.owner", After: "team-shop"},
		}, result.Results[0].Fields)

		stored := h.store.View().Policies[shop]
		require.Equal(t, alex.Actor, stored.Metadata.CreatedBy)
		require.Equal(t, created, stored.Metadata.CreatedAt)
		require.Equal(t, sam.Actor, stored.Metadata.UpdatedBy)
		require.Equal(t, created.Add(time.Minute), stored.Metadata.UpdatedAt)

		entry := h.store.entries("")[1]
		require.Equal(t, "policy.apply", entry.Action)
		require.Equal(t, "vendor moved", entry.Reason)
		require.Equal(t, "req-2", entry.RequestID)
		require.Len(t, entry.Changes, 3)
		require.JSONEq(t, `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"shop"},"spec":{"maxAttempts":2}}`, entry.Changes[0].Before)
		require.JSONEq(t, `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"shop","owner":"team-shop"},"spec":{"maxAttempts":4}}`, entry.Changes[0].After)
		require.Empty(t, entry.Changes[1].Before)
		require.Empty(t, entry.Changes[2].After)
	})
}

func TestApply_O_CL_02_O_RL_03_the_same_again_writes_nothing(t *testing.T) {
	h := newHouse(t)
	same := func() *policy.Policy {
		p := doc(payments, settings{engine.MaxAttempts: engine.Int(3), engine.RetryOnHTTP: engine.Set("503", "502")})
		p.Metadata.Labels = map[string]string{"tier": "1"}
		return p
	}
	at := h.seed(t, same())
	for range 5 {
		result, err := h.Apply(t.Context(), sam, admin.ApplyRequest{Changes: []admin.PolicyChange{put(same(), at)}})
		require.NoError(t, err)
		require.Zero(t, result.Revision)
		require.Equal(t, admin.Unchanged, result.Results[0].Kind)
		require.Equal(t, at, result.Results[0].Revision)
		require.Empty(t, result.Results[0].Fields)
	}
	require.Equal(t, at, h.store.View().Revision)
	require.Len(t, h.store.commits, 1, "one write, one record")

	// What is set to its default differs from what is not set.
	result, err := h.Apply(t.Context(), sam, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(payments, settings{engine.MaxAttempts: engine.Int(3)}), at)}})
	require.NoError(t, err)
	require.Equal(t, admin.Changed, result.Results[0].Kind)
}

func TestApply_metadata_alone_is_a_change(t *testing.T) {
	for name, edit := range map[string]func(*policy.Metadata){
		"owner":       func(m *policy.Metadata) { m.Owner = "team" },
		"labels":      func(m *policy.Metadata) { m.Labels = map[string]string{"tier": "2"} },
		"annotations": func(m *policy.Metadata) { m.Annotations = map[string]string{"runbook": "x"} },
		"managedBy":   func(m *policy.Metadata) { m.ManagedBy = "git" },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			at := h.seed(t, doc(shop, settings{}))
			p := doc(shop, settings{})
			edit(&p.Metadata)
			result, err := h.Apply(t.Context(), sam, admin.ApplyRequest{Changes: []admin.PolicyChange{put(p, at)}})
			require.NoError(t, err)
			require.Equal(t, admin.Changed, result.Results[0].Kind)
		})
	}
}

func TestApply_dry_run_tells_and_writes_nothing(t *testing.T) {
	h := newHouse(t)
	at := h.seed(t, doc(shop, settings{engine.MaxAttempts: engine.Int(2)}))
	result, err := h.Apply(t.Context(), sam, admin.ApplyRequest{
		DryRun:  true,
		Changes: []admin.PolicyChange{put(doc(shop, settings{engine.BackoffJitter: engine.Enum("none")}), at)},
	})
	require.NoError(t, err)
	require.Zero(t, result.Revision)
	require.Equal(t, admin.Changed, result.Results[0].Kind)
	require.Equal(t, "P104", result.Results[0].Findings[0].Code)
	require.Len(t, h.store.commits, 1)
}

func TestApply_O_AP_02_needs_the_expected_revision(t *testing.T) {
	h := newHouse(t)
	at := h.seed(t, doc(shop, settings{engine.MaxAttempts: engine.Int(2)}))
	want := doc(shop, settings{engine.MaxAttempts: engine.Int(4)})
	apply := func(expected *policy.Revision) error {
		_, err := h.Apply(t.Context(), sam, admin.ApplyRequest{Changes: []admin.PolicyChange{{Policy: want, Expected: expected}}})
		return err
	}
	requireFault(t, apply(nil), fault.Invalid, "precondition_required")
	requireFault(t, apply(rev(-1)), fault.Invalid, "precondition_invalid")
	requireFault(t, apply(rev(at-1)), fault.Conflict, "revision_moved")
	requireFault(t, apply(rev(0)), fault.Conflict, "exists")
	require.Len(t, h.store.commits, 1)
	require.NoError(t, apply(rev(at)))

	_, err := h.Apply(t.Context(), sam, admin.ApplyRequest{Deletions: []admin.PolicyDeletion{{Scope: shop}}, Confirm: "shop"})
	requireFault(t, err, fault.Invalid, "precondition_required")
}

func TestApply_a_revision_that_never_was_is_a_conflict_not_a_wait_for_ever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.seed(t, doc(shop, settings{engine.MaxAttempts: engine.Int(2)}))
		_, err := h.Apply(t.Context(), sam, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(shop, settings{}), 99)}})
		requireFault(t, err, fault.Conflict, "revision_moved")
	})
}

func TestApply_waits_for_a_view_that_lags_what_the_caller_saw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		old := h.store.View()
		at := h.seed(t, doc(shop, settings{engine.MaxAttempts: engine.Int(2)}))
		h.store.lag.Store(old)
		go func() {
			time.Sleep(300 * time.Millisecond)
			h.store.lag.Store(nil)
		}()
		result, err := h.Apply(t.Context(), sam, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(shop, settings{engine.MaxAttempts: engine.Int(4)}), at)}})
		require.NoError(t, err)
		require.Equal(t, admin.Changed, result.Results[0].Kind)
	})
}

func TestApply_two_writers_of_one_revision_and_exactly_one_wins(t *testing.T) {
	for range 50 {
		h := newHouse(t)
		at := h.seed(t, doc(shop, settings{engine.MaxAttempts: engine.Int(2)}))
		// Both have read the view before either writes: the store decides.
		var both sync.WaitGroup
		both.Add(2)
		h.store.before = func(policy.Transaction) error {
			both.Done()
			both.Wait()
			return nil
		}
		errs := make(chan error, 2)
		for i, who := range []admin.Caller{alex, sam} {
			go func() {
				_, err := h.Apply(t.Context(), who, admin.ApplyRequest{
					Changes: []admin.PolicyChange{put(doc(shop, settings{engine.MaxAttempts: engine.Int(int64(3 + i))}), at)},
				})
				errs <- err
			}()
		}
		first, second := <-errs, <-errs
		if first == nil {
			first, second = second, first
		}
		require.NoError(t, second)
		var moved *policy.ConflictError
		require.ErrorAs(t, first, &moved)
		winner := h.store.View().Policies[shop]
		require.Equal(t, winner.Metadata.UpdatedBy, moved.By, "the loser learns who")
		require.Equal(t, winner.Metadata.UpdatedAt, moved.At, "and when")
		require.Equal(t, winner, moved.Policy, "and what is there now")
		require.Len(t, h.store.commits, 2)
	}
}

func TestApply_conflict_says_who_and_when(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		at := h.seed(t, doc(shop, settings{engine.MaxAttempts: engine.Int(2)}))
		time.Sleep(time.Hour)
		_, err := h.Apply(t.Context(), sam, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(shop, settings{engine.MaxAttempts: engine.Int(4)}), at)}})
		require.NoError(t, err)
		when := wall()
		time.Sleep(time.Hour)
		_, err = h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(shop, settings{engine.MaxAttempts: engine.Int(1)}), at)}})
		var moved *policy.ConflictError
		require.ErrorAs(t, err, &moved)
		require.Equal(t, sam.Actor, moved.By)
		require.Equal(t, when, moved.At)
		require.Equal(t, at+1, moved.Current)
		require.Equal(t, engine.Int(4), moved.Policy.Settings[engine.MaxAttempts])
		require.ErrorContains(t, err, "sam saved 3")
	})
}

func TestApply_one_bad_document_and_none_is_written(t *testing.T) {
	for name, bad := range map[string]struct {
		doc    *policy.Policy
		path   string
		reason string
	}{
		"a value out of bounds":          {doc(payments, settings{engine.MaxAttempts: engine.Int(11)}), "spec.maxAttempts", "policy_invalid"},
		"a value above a ceiling":        {doc(payments, settings{engine.BudgetRatio: ratio(0.2)}), "spec.budget.ratio", "policy_invalid"},
		"a ceiling looser than a wider":  {doc(payments, settings{engine.CeilingsMaxAttempts: engine.Int(9)}), "spec.ceilings.maxAttempts", "policy_invalid"},
		"a field at the wrong level":     {doc(payments, settings{engine.Public: engine.Bool(true)}), "spec.public", "policy_invalid"},
		"a base above the inherited max": {doc(payments, settings{engine.BackoffBase: engine.Duration(time.Minute)}), "spec.backoff.base", "policy_invalid"},
		"a bad scope":                    {doc("shop//x", settings{}), "metadata.scope", "scope_invalid"},
		"an unknown criticality":         {&policy.Policy{Scope: payments, Metadata: policy.Metadata{Labels: map[string]string{"criticality": "huge"}}}, "metadata.labels.criticality", "policy_invalid"},
		"65 KiB of annotations":          {large(), "", "policy_invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{
				put(doc(shop, settings{engine.MaxAttempts: engine.Int(2)}), 0), put(bad.doc, 0),
			}})
			f := faultOf(t, err, fault.Invalid, bad.reason)
			require.Equal(t, bad.path, f.Violations[0].Path)
			require.NotEmpty(t, f.Violations[0].Rule)
			require.Empty(t, h.store.commits)
			require.Empty(t, h.store.View().Policies)
		})
	}
}

func large() *policy.Policy {
	p := doc(payments, settings{})
	p.Metadata.Annotations = map[string]string{}
	for i := range 17 {
		p.Metadata.Annotations[fmt.Sprint("a", i)] = strings.Repeat("x", 4<<10)
	}
	return p
}

func TestApply_names_every_violation_of_a_batch(t *testing.T) {
	h := newHouse(t)
	_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{
		put(doc(shop, settings{engine.MaxAttempts: engine.Int(0), engine.BudgetWindow: engine.Duration(time.Hour)}), 0),
		put(doc(payments, settings{engine.MaxAttempts: engine.Int(99)}), 0),
	}})
	f := faultOf(t, err, fault.Invalid, "policy_invalid")
	require.Len(t, f.Violations, 3)
	require.Equal(t, []string{"shop", "shop", "shop/payments"}, []string{f.Violations[0].Scope, f.Violations[1].Scope, f.Violations[2].Scope})
	require.ErrorContains(t, err, "and 2 more")
}

func TestApply_checks_against_what_results_not_what_was(t *testing.T) {
	h := newHouse(t)
	at := h.seed(t,
		doc(engine.Global, settings{engine.CeilingsMaxAttempts: engine.Int(5)}),
		doc(payments, settings{engine.MaxAttempts: engine.Int(5)}))
	// Raising the ceiling and using it in one batch is fine; so is the order in which it is told.
	_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{
		put(doc(payments, settings{engine.MaxAttempts: engine.Int(8)}), at),
		put(doc(engine.Global, settings{engine.CeilingsMaxAttempts: engine.Int(8)}), at),
	}})
	require.NoError(t, err)
}

func TestApply_a_tightened_ceiling_lists_whom_it_clips(t *testing.T) {
	h := newHouse(t)
	at := h.seed(t,
		doc(shop, settings{engine.CeilingsMaxAttempts: engine.Int(5)}),
		doc(payments, settings{engine.MaxAttempts: engine.Int(4)}),
		doc("shop/search", settings{engine.MaxAttempts: engine.Int(2)}))
	result, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{
		put(doc(shop, settings{engine.CeilingsMaxAttempts: engine.Int(2)}), at),
	}})
	require.NoError(t, err)
	var messages []string
	for _, f := range result.Results[0].Findings {
		messages = append(messages, f.Message)
	}
	require.Contains(t, messages, "maxAttempts of shop/payments is clipped from 4 to 2")
	require.NotContains(t, strings.Join(messages, "\n"), "search")
	e, err := h.Effective(t.Context(), payments)
	require.NoError(t, err)
	v := valueOf(t, e, engine.MaxAttempts)
	require.Equal(t, engine.Int(2), v.Value)
	require.Equal(t, "shop", v.Ceiling)
	require.Equal(t, "shop/payments", v.Origin.From)
	require.Equal(t, engine.Int(4), v.Shadows[0].Value)
}

func TestApply_patterns_that_conflict_are_refused_with_both_names(t *testing.T) {
	match := func(path string) settings {
		return settings{engine.MatchHTTPHost: engine.Text("pay.shop"), engine.MatchHTTPPath: engine.Text(path)}
	}
	h := newHouse(t)
	h.seed(t, doc(charges, match("/v1/{id}/capture")))
	_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc("shop/payments/other", match("/v1/charges/{what}")), 0)}})
	f := faultOf(t, err, fault.Invalid, "policy_invalid")
	require.Equal(t, "shop/payments/other", f.Violations[0].Scope)
	require.Contains(t, f.Violations[0].Rule, string(charges))

	// Between services too, since a call knows no service.
	_, err = h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc("shop/billing/other", match("/v1/{id}/capture")), 0)}})
	requireFault(t, err, fault.Invalid, "policy_invalid")
}

func TestApply_a_budget_shared_by_a_service_is_not_overridden_below(t *testing.T) {
	shared := settings{engine.BudgetScope: engine.Enum("service"), engine.BudgetRatio: ratio(0.05)}
	own := settings{engine.BudgetRatio: ratio(0.01)}

	h := newHouse(t)
	h.seed(t, doc(payments, shared))
	_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(charges, own), 0)}})
	f := faultOf(t, err, fault.Invalid, "policy_invalid")
	require.Equal(t, "spec.budget.ratio", f.Violations[0].Path)

	h = newHouse(t)
	h.seed(t, doc(charges, own))
	_, err = h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(payments, shared), 0)}})
	f = faultOf(t, err, fault.Invalid, "policy_invalid")
	require.Equal(t, string(charges), f.Violations[0].Scope)
}

func TestApply_shape_of_a_request(t *testing.T) {
	p := doc(shop, settings{})
	for name, tc := range map[string]struct {
		req    admin.ApplyRequest
		kind   fault.Kind
		reason string
	}{
		"nothing at all":         {admin.ApplyRequest{}, fault.Invalid, "batch_empty"},
		"a change of nothing":    {admin.ApplyRequest{Changes: []admin.PolicyChange{{}}}, fault.Invalid, "policy_missing"},
		"one scope twice":        {admin.ApplyRequest{Changes: []admin.PolicyChange{put(p, 0), put(p, 0)}}, fault.Invalid, "scope_repeated"},
		"written and deleted":    {admin.ApplyRequest{Changes: []admin.PolicyChange{put(p, 0)}, Deletions: []admin.PolicyDeletion{{Scope: shop, Expected: rev(0)}}}, fault.Invalid, "scope_repeated"},
		"deletion of what isn't": {admin.ApplyRequest{Deletions: []admin.PolicyDeletion{{Scope: shop, Expected: rev(0)}}}, fault.NotFound, "policy_not_found"},
		"deletion of what went":  {admin.ApplyRequest{Deletions: []admin.PolicyDeletion{{Scope: shop, Expected: rev(1)}}}, fault.Conflict, "revision_moved"},
		"a reason too long":      {admin.ApplyRequest{Changes: []admin.PolicyChange{put(p, 0)}, Reason: strings.Repeat("x", 2000)}, fault.Invalid, "reason_invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			_, err := h.Apply(t.Context(), alex, tc.req)
			requireFault(t, err, tc.kind, tc.reason)
			require.Empty(t, h.store.commits)
		})
	}
}

// twenty seeds shop with 20 policies of one tool and one of another.
func (h *house) twenty(t *testing.T) policy.Revision {
	t.Helper()
	var docs []*policy.Policy
	for i := range 20 {
		p := doc(engine.Scope(fmt.Sprintf("shop/s%02d", i)), settings{engine.MaxAttempts: engine.Int(2)})
		p.Metadata.ManagedBy = "git"
		docs = append(docs, p)
	}
	return h.seed(t, append(docs, doc("shop/mine", settings{engine.MaxAttempts: engine.Int(2)}))...)
}

func TestApply_O_CL_03_prune(t *testing.T) {
	h := newHouse(t)
	at := h.twenty(t)
	_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{PruneManagedBy: "git", Confirm: "shop"})
	requireFault(t, err, fault.Refused, "prune_empty")

	kept := doc("shop/s00", settings{engine.MaxAttempts: engine.Int(2)})
	kept.Metadata.ManagedBy = "git"
	req := admin.ApplyRequest{PruneManagedBy: "git", Changes: []admin.PolicyChange{put(kept, at)}}
	_, err = h.Apply(t.Context(), alex, req)
	f := faultOf(t, err, fault.Refused, "removal_unconfirmed")
	require.Contains(t, f.Message, "19 of the 21 policies of shop")
	require.Contains(t, f.Hint, "--confirm=shop")
	require.Len(t, h.store.commits, 1, "nothing deleted")

	req.Confirm, req.DryRun = "shop", true
	plan, err := h.Apply(t.Context(), alex, req)
	require.NoError(t, err)
	require.Len(t, plan.Results, 20)
	require.Equal(t, admin.Unchanged, plan.Results[0].Kind)
	for _, r := range plan.Results[1:] {
		require.Equal(t, admin.Deleted, r.Kind)
	}

	req.DryRun = false
	_, err = h.Apply(t.Context(), alex, req)
	require.NoError(t, err)
	require.Len(t, h.store.View().Policies, 2)
	require.Contains(t, h.store.View().Policies, engine.Scope("shop/mine"), "not made by this tool")
	require.Equal(t, "policy.delete", h.store.entries("")[1].Action)
}

func TestApply_deletion_of_more_than_a_fifth_needs_the_name(t *testing.T) {
	deletions := func(n int, at policy.Revision) (ds []admin.PolicyDeletion) {
		for i := range n {
			ds = append(ds, admin.PolicyDeletion{Scope: engine.Scope(fmt.Sprintf("shop/s%02d", i)), Expected: rev(at)})
		}
		return ds
	}
	h := newHouse(t)
	at := h.twenty(t) // 21 policies: 4 are 19 %, 5 are 24 %
	_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Deletions: deletions(5, at)})
	requireFault(t, err, fault.Refused, "removal_unconfirmed")
	_, err = h.Apply(t.Context(), alex, admin.ApplyRequest{Deletions: deletions(5, at), Confirm: "other"})
	requireFault(t, err, fault.Refused, "removal_unconfirmed")
	_, err = h.Apply(t.Context(), alex, admin.ApplyRequest{Deletions: deletions(4, at)})
	require.NoError(t, err)
}

func TestApply_exactly_a_fifth_needs_no_name(t *testing.T) {
	h := newHouse(t)
	var docs []*policy.Policy
	for i := range 5 {
		docs = append(docs, doc(engine.Scope(fmt.Sprint("shop/s", i)), settings{}))
	}
	at := h.seed(t, docs...)
	remove := func(i int) error {
		_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Deletions: []admin.PolicyDeletion{{Scope: docs[i].Scope, Expected: rev(at)}}})
		return err
	}
	require.NoError(t, remove(0))
	requireFault(t, remove(1), fault.Refused, "removal_unconfirmed")
}

func TestApply_the_only_policy_of_a_namespace_is_confirmed_too(t *testing.T) {
	h := newHouse(t)
	at := h.seed(t, doc(shop, settings{engine.MaxAttempts: engine.Int(2)}), doc(engine.Global, settings{engine.MaxAttempts: engine.Int(2)}))
	for _, scope := range []engine.Scope{shop, engine.Global} {
		_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Deletions: []admin.PolicyDeletion{{Scope: scope, Expected: rev(at)}}})
		requireFault(t, err, fault.Refused, "removal_unconfirmed")
	}
	_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{
		Deletions: []admin.PolicyDeletion{{Scope: shop, Expected: rev(at)}, {Scope: engine.Global, Expected: rev(at)}}, Confirm: "global,shop",
	})
	require.NoError(t, err)
}

func TestApply_O_ST_01_at_most_100_documents_at_once(t *testing.T) {
	docs := func(n int, at policy.Revision) (cs []admin.PolicyChange) {
		for i := range n {
			cs = append(cs, put(doc(engine.Scope(fmt.Sprintf("shop/s%03d", i)), settings{engine.MaxAttempts: engine.Int(2)}), at))
		}
		return cs
	}
	h := newHouse(t)
	_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: docs(101, 0)})
	requireFault(t, err, fault.Refused, "batch_too_large")
	require.Empty(t, h.store.commits)
	result, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: docs(100, 0)})
	require.NoError(t, err)

	// What stays as it is does not count.
	more := append(docs(100, result.Revision), put(doc("shop/new", settings{}), 0))
	_, err = h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: more})
	require.NoError(t, err)
}

func TestApply_counts_endpoints_and_instances(t *testing.T) {
	h := newHouse(t)
	at := h.seed(t, doc(shop, settings{engine.MaxAttempts: engine.Int(2)}), doc(charges, settings{engine.MaxAttempts: engine.Int(1)}))
	h.connect("cart-1", int64(at), shop).Reported(&fleet.Report{Period: 10 * time.Second, Endpoints: []fleet.EndpointReport{{Endpoint: "shop/search/query", Calls: 10, Attempts: 10}}})
	h.connect("cart-2", int64(at), payments)
	h.connect("media-1", int64(at), "media")
	result, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{
		put(doc(shop, settings{engine.MaxAttempts: engine.Int(3)}), at),
	}})
	require.NoError(t, err)
	require.Equal(t, 1, result.Results[0].Endpoints, "search inherits it, charges has its own")
	require.Equal(t, 2, result.Results[0].Instances)

	described := settings{engine.MaxAttempts: engine.Int(3), engine.Description: engine.Text("all of it")}
	result, err = h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(shop, described), result.Revision)}})
	require.NoError(t, err)
	require.Zero(t, result.Results[0].Endpoints, "a description changes nothing")
}

func TestApply_store_errors_pass_through(t *testing.T) {
	h := newHouse(t)
	h.store.before = func(policy.Transaction) error { return fault.New(fault.Unavailable, "no_quorum", "no leader") }
	_, err := h.Apply(t.Context(), alex, admin.ApplyRequest{Changes: []admin.PolicyChange{put(doc(shop, settings{}), 0)}})
	requireFault(t, err, fault.Unavailable, "no_quorum")
}

func TestRecord_is_the_document_as_written(t *testing.T) {
	h := newHouse(t)
	p := doc(payments, settings{
		engine.BackoffBase: engine.Duration(200 * time.Millisecond), engine.BudgetRatio: ratio(0.05),
		engine.RetryOnHTTP: engine.Set("429", "5xx"), engine.RetryOnGRPC: engine.Set(), engine.BreakerEnabled: engine.Bool(false),
		engine.BreakerRatioFailures: ratio(0.3), engine.BackoffJitter: engine.Enum("equal"),
	})
	h.seed(t, p)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(h.store.entries("")[0].Changes[0].After), &got))
	require.Equal(t, map[string]any{
		"backoff": map[string]any{"base": "200ms", "jitter": "equal"},
		"budget":  map[string]any{"ratio": 0.05},
		"retryOn": map[string]any{"http": []any{429.0, "5xx"}, "grpc": []any{}},
		"breaker": map[string]any{"enabled": false, "ratio": map[string]any{"failures": 0.3}},
	}, got["spec"])
}

// Whatever valid documents are applied, in whatever parts, a list gives the same.
func TestApply_then_list_gives_the_same(t *testing.T) {
	scopes := []engine.Scope{engine.Global, shop, payments, charges, "shop/search", "media", "media/encode/job.start"}
	rapid.Check(t, func(rt *rapid.T) {
		h := newHouse(t)
		want := map[engine.Scope]settings{}
		at := map[engine.Scope]policy.Revision{}
		for range rapid.IntRange(1, 8).Draw(rt, "batches") {
			var req admin.ApplyRequest
			req.Confirm = "global,shop,media"
			for _, scope := range rapid.SliceOfNDistinct(rapid.SampledFrom(scopes), 1, 4, rapid.ID[engine.Scope]).Draw(rt, "scopes") {
				if at[scope] > 0 && rapid.IntRange(0, 3).Draw(rt, "delete") == 0 {
					req.Deletions = append(req.Deletions, admin.PolicyDeletion{Scope: scope, Expected: rev(at[scope])})
					delete(want, scope)
					continue
				}
				s := settings{
					engine.MaxAttempts: engine.Int(rapid.Int64Range(1, 5).Draw(rt, "attempts")),
					engine.BudgetRatio: engine.Micro(rapid.Int64Range(0, 100_000).Draw(rt, "ratio")),
				}
				if rapid.Bool().Draw(rt, "sets") {
					s[engine.RetryOnHTTP] = engine.Set(rapid.SliceOf(rapid.SampledFrom([]string{"429", "503", "5xx"})).Draw(rt, "http")...)
				}
				req.Changes = append(req.Changes, put(doc(scope, s), at[scope]))
				want[scope] = s
			}
			result, err := h.Apply(t.Context(), alex, req)
			require.NoError(rt, err)
			for _, r := range result.Results {
				at[r.Scope] = r.Revision
			}
		}
		revision, found, err := h.Policies(t.Context(), "", nil)
		require.NoError(rt, err)
		require.Equal(rt, h.store.View().Revision, revision)
		require.Len(rt, found, len(want))
		for _, st := range found {
			scope := st.Policy.Scope
			require.Equal(rt, at[scope], st.Policy.Revision)
			require.Empty(rt, policy.Diff(doc(scope, want[scope]), st.Policy))
		}
	})
}
