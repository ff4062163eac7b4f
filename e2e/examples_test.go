// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// What examples/policies says is what policyd takes, and what an SDK gets from it.
func TestExamples_are_applied_by_policyd_and_in_force_in_an_SDK(t *testing.T) {
	const folder = "../examples/policies"
	dir := t.TempDir()
	w := &world{t: t, grpc: freeAddr(t), http: freeAddr(t), data: filepath.Join(dir, "data")}
	w.startPolicyd()
	w.ctl(0, "validate", "-f", folder)
	w.ctl(0, "apply", "-f", folder, "--yes", "--no-wait")
	w.ctl(0, "diff", "-f", folder) // nothing was lost on the way

	client, err := policyd.New(policyd.WithAddr(w.grpc), policyd.WithCacheDir(""), policyd.WithService("web", "examples"),
		policyd.WithTargets("web", "gateway", "shop", "notes"))
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close(context.WithoutCancel(t.Context()))) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, client.WaitReady(ctx))
	st := client.Status()
	require.Equal(t, policyd.StateLive, st.State, "%+v", st)
	require.NoError(t, st.LastErr)

	var listed struct {
		Items []struct{ Metadata struct{ Scope string } }
	}
	require.NoError(t, json.Unmarshal([]byte(w.ctl(0, "export", "-o", "json")), &listed))
	files, err := filepath.Glob(folder + "/*.yaml")
	require.NoError(t, err)
	require.Len(t, listed.Items, len(files))
	fake := policytest.New(t, "")
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		fake.Apply(string(text))
	}
	for _, item := range listed.Items {
		endpoint := item.Metadata.Scope + "/any"
		require.Equal(t, fake.Client().Effective(endpoint).Values, client.Effective(endpoint).Values)
	}
}
