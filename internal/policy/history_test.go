// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/policy"
)

func TestHistory_judges_what_was_served(t *testing.T) {
	secret := []byte("of these data")
	served := &policy.History{
		Epoch: "e1", Number: 1, Cluster: 7, Secret: secret,
		Branches: []policy.Branch{{ID: 11, After: 5}, {ID: 12, After: 50}},
	}
	later := *served
	later.Branches = append(later.Branches[:2:2], policy.Branch{ID: 13, After: 100})
	putBack := *served
	putBack.Branches = []policy.Branch{{ID: 11, After: 5}, {ID: 14, After: 40}}
	next := policy.History{Epoch: "e2", Number: 2, Cluster: 7, Secret: secret, Branches: putBack.Branches}
	elsewhere := policy.History{Epoch: "e2", Number: 2, Cluster: 8, Secret: secret}
	others := *served
	others.Secret = []byte("of other data")
	unsigned := *served
	unsigned.Secret = nil

	at := func(h *policy.History, r policy.Revision) policy.Point {
		return policy.Point{Epoch: h.Epoch, Revision: r, Token: h.Token(r)}
	}
	for name, tc := range map[string]struct {
		of   *policy.History
		p    policy.Point
		want policy.Verdict
	}{
		"a revision of the past":                           {served, at(served, 30), policy.Past},
		"one after another policyd started":                {&later, at(served, 90), policy.Past},
		"one that is still to come":                        {served, at(served, 900), policy.Past},
		"from before the data were put back":               {&putBack, at(served, 40), policy.Past},
		"from what was lost when they were put back":       {&putBack, at(served, 41), policy.Lost},
		"from what was lost on a later branch":             {&putBack, at(served, 60), policy.Lost},
		"from an earlier epoch":                            {&next, at(served, 60), policy.Past},
		"from a later epoch that is lost":                  {served, at(&next, 60), policy.Lost},
		"from a later epoch in another cluster":            {served, at(&elsewhere, 60), policy.Replaced},
		"older than the branches that are known":           {&policy.History{Epoch: "e1", Cluster: 7, Number: 1, Secret: secret, Branches: later.Branches[2:]}, at(served, 30), policy.Past},
		"of other data":                                    {served, at(&others, 30), policy.Unproven},
		"without a token":                                  {served, policy.Point{Epoch: "e1", Revision: 30}, policy.Unproven},
		"a token of another revision":                      {served, policy.Point{Epoch: "e1", Revision: 900, Token: served.Token(30)}, policy.Unproven},
		"a token of another epoch":                         {served, policy.Point{Epoch: "e9", Revision: 30, Token: served.Token(30)}, policy.Unproven},
		"a token that is cut off":                          {served, policy.Point{Epoch: "e1", Revision: 30, Token: served.Token(30)[:20]}, policy.Unproven},
		"a point for a policyd that signs nothing":         {&unsigned, at(served, 30), policy.Unproven},
		"a point for a policyd that has read nothing":      {nil, at(served, 30), policy.Unproven},
		"a branch that was changed on the way":             {served, changed(at(served, 30), 20), policy.Unproven},
		"a number that was changed on the way":             {served, changed(at(served, 30), 7), policy.Unproven},
		"a signature that was changed on the way":          {served, changed(at(served, 30), 31), policy.Unproven},
		"a revision before the first branch that is known": {served, at(served, 3), policy.Past},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, tc.of.Judge(tc.p)) })
	}
	require.Nil(t, unsigned.Token(3))
	require.EqualValues(t, 2, served.NumberOf(at(&next, 60)))
}

func changed(p policy.Point, at int) policy.Point {
	p.Token[at] ^= 1
	return p
}

func FuzzJudge(f *testing.F) {
	h := &policy.History{Epoch: "e", Number: 3, Cluster: 7, Secret: []byte("s"), Branches: []policy.Branch{{ID: 1, After: 5}, {ID: 2, After: 9}}}
	f.Add("e", int64(8), h.Token(8))
	f.Add("f", int64(-1), []byte{})
	f.Fuzz(func(t *testing.T, epoch string, revision int64, token []byte) {
		verdict := h.Judge(policy.Point{Epoch: policy.Epoch(epoch), Revision: policy.Revision(revision), Token: token})
		if verdict != policy.Unproven && string(token) != string(h.Token(policy.Revision(revision))) {
			t.Fatalf("%v: a token that was never given", verdict)
		}
	})
}
