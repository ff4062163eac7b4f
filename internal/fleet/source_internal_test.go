// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/sdk/go/engine"
)

func reporting(id string, endpoints int) Instance {
	return Instance{Identity: Identity{ID: id}, State: Live, Report: &Report{Endpoints: make([]EndpointReport, endpoints)}}
}

func TestSource_counts_the_endpoints_that_it_holds(t *testing.T) {
	r := New()
	s := r.AddCell()
	s.Update([]Instance{reporting("a", 3), reporting("b", 4)}, true)
	require.EqualValues(t, 7, r.endpoints.Load())
	s.Update([]Instance{reporting("a", 5)}, false)
	s.Stand([]string{"a", "b"}, Standing{State: Behind}, time.Now())
	require.EqualValues(t, 9, r.endpoints.Load())
	s.Update([]Instance{reporting("c", 2)}, true)
	require.EqualValues(t, 2, r.endpoints.Load())

	r.endpoints.Add(MaxEndpoints)
	s.Update([]Instance{reporting("d", 10)}, false)
	require.EqualValues(t, MaxEndpoints+3, r.endpoints.Load(), "a sum, as there is no room")
	r.endpoints.Add(-MaxEndpoints)
	s.Close()
	require.Zero(t, r.endpoints.Load())
}

func TestSource_forgets_who_stays_away_before_it_is_full(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		s := r.AddSource()
		all := make([]Instance, MaxInstances)
		for i := range all {
			all[i] = Instance{Identity: Identity{ID: fmt.Sprint(i)}, State: Stale, LastSeen: time.Now()}
		}
		s.Update(all, true)
		require.False(t, s.Full())
		time.Sleep(ForgottenAfter)
		s.Update([]Instance{{Identity: Identity{ID: "new"}, State: Live}}, false)
		require.False(t, s.Full())
		require.Len(t, s.instances, 1)

		s.Update(all, false)
		require.True(t, s.Full())
	})
}

func TestInstance_says_no_more_through_others_than_itself(t *testing.T) {
	long := strings.Repeat("x", 1000) + "\xff"
	in := reporting("a", 1000)
	in.Service, in.SDKVersion, in.Targets = long, long, make([]engine.Scope, 1000)
	for range 1000 {
		in.Rejected = append(in.Rejected, Rejection{Scope: long, Field: long, Reason: long})
	}
	codes := map[string]int64{}
	for i := range 1000 {
		codes[fmt.Sprint(i)] = 1
	}
	in.Report.Endpoints[0] = EndpointReport{Endpoint: long, Calls: -1, Breaker: long, Suppressed: codes}
	in.Clip()
	require.Len(t, in.Service, MaxText)
	require.Len(t, in.SDKVersion, MaxText)
	require.Len(t, in.Targets, MaxTargets)
	require.Len(t, in.Rejected, MaxRejections)
	require.Len(t, in.Rejected[99].Reason, MaxReason)
	require.Len(t, in.Report.Endpoints, MaxReported)
	e := in.Report.Endpoints[0]
	require.Len(t, e.Endpoint, MaxPath)
	require.Zero(t, e.Calls)
	require.LessOrEqual(t, len(e.Suppressed), maxFoldedCodes+1)
	sum := int64(0)
	for _, n := range e.Suppressed {
		sum += n
	}
	require.EqualValues(t, 1000, sum)
}
