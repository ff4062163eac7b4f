// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
)

func TestNew_reports_every_wrong_option_at_once(t *testing.T) {
	_, err := policyd.New(policyd.WithMode("enforced"), policyd.WithAddr("policyd.prod"), policyd.WithService("Shop", "a/b"),
		policyd.WithTargets("shop//x"), policyd.WithInstance("a b"), policyd.WithLogger(nil), policyd.WithTLS("", "cert.pem", ""), nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`policyd: WithMode: unknown mode "enforced" (enforce, observe, off)`,
		`policyd: WithAddr: address "policyd.prod" is not host:port`,
		`policyd: WithService: scope "Shop"`,
		`policyd: WithService: "a/b" is not a single name`,
		`policyd: WithTargets: scope "shop//x"`,
		`policyd: WithInstance: `,
		`policyd: WithLogger: `,
		`policyd: WithTLS: certificate and key go together`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

func TestEnvironment_is_the_default_of_every_option(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		opts []policyd.Option
		want string // addrs, targets, namespace, service, instance
		err  string
	}{
		"nothing set": {want: "[] []  "},
		"all set": {
			env: map[string]string{
				"POLICYD_ADDR": "a:1, b:2,", "POLICYD_TARGETS": "shop, fx/rates", "POLICYD_NAMESPACE": "shop", "POLICYD_SERVICE": "web",
				"POLICYD_INSTANCE": "i-7", "POLICYD_MODE": "observe", "POLICYD_LOG": "debug", "POLICYD_CACHE_DIR": "",
			},
			want: "[a:1 b:2] [shop fx/rates] shop web i-7",
		},
		"options win": {
			env:  map[string]string{"POLICYD_ADDR": "a:1", "POLICYD_NAMESPACE": "shop", "POLICYD_INSTANCE": "i-7"},
			opts: []policyd.Option{policyd.WithAddr(""), policyd.WithService("media", "enc"), policyd.WithInstance("i-8")},
			want: "[] [] media enc i-8",
		},
		"what OpenTelemetry says": {
			env: map[string]string{
				"OTEL_RESOURCE_ATTRIBUTES": "service.namespace=Shop,service.name=ignored,service.instance.id=pod%2D7",
				"OTEL_SERVICE_NAME":        "web",
			},
			want: "[] [] shop web pod-7",
		},
		"what OpenTelemetry says and is no name": {
			env:  map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "service.namespace=my shop,service.name=a/b,service.instance.id=i-1"},
			want: "[] []   i-1",
		},
		"wrong values": {
			env: map[string]string{"POLICYD_ADDR": "a", "POLICYD_MODE": "on", "POLICYD_LOG": "loud", "POLICYD_NAMESPACE": "Shop", "POLICYD_INSTANCE": "i-1"},
			err: "POLICYD_ADDR|POLICYD_MODE|POLICYD_LOG|POLICYD_NAMESPACE", want: "[] []   i-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			addrs, targets, namespace, service, instance, err := policyd.ParseEnvironment(c.env, c.opts...)
			got := fmt.Sprint(addrs, " ", targets, " ", namespace, " ", service, " ", instance)
			if !strings.HasPrefix(strings.Join(strings.Fields(got), " "), strings.Join(strings.Fields(c.want), " ")) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if instance == "" {
				t.Error("no instance id")
			}
			if c.err == "" && err != nil {
				t.Error(err)
			}
			for want := range strings.SplitSeq(c.err, "|") {
				if c.err != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("error lacks %q: %v", want, err)
				}
			}
		})
	}
}

func TestTargets_too_many_are_left_out(t *testing.T) {
	list := strings.Repeat("shop,", 64)
	_, targets, _, _, _, err := policyd.ParseEnvironment(map[string]string{"POLICYD_TARGETS": list + "fx"})
	if err == nil || !strings.Contains(err.Error(), "POLICYD_TARGETS: 65 targets: at most 64") {
		t.Errorf("error %v", err)
	}
	if got := strings.Join(targets, ",") + ","; got != list { // policyd refuses an instance with more
		t.Errorf("targets %s", got)
	}
}

func TestNew_without_an_address_is_static_and_starts_nothing(t *testing.T) {
	noLeak(t, 0, func() {
		c := newWatched(t, policyd.WithCacheDir(""))
		c.Touch(ep)
		if err := c.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := c.Status(); st.State != policyd.StateStatic || st.Source != "built-in" || st.Revision != 0 {
			t.Fatalf("status %+v", st)
		}
	})
}

func TestNew_names_the_fault_of_a_policy_file(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.json")
	if _, err := policyd.New(policyd.WithPolicyFile(path)); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
	if err := os.WriteFile(path, []byte("{\n\"kind\": \"Policy\"}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := policyd.New(policyd.WithPolicyFile(path))
	if err == nil || !strings.Contains(err.Error(), `p.json: line 2, column 9: unknown kind "Policy"`) {
		t.Errorf("error %v", err)
	}
}

func TestPolicyFile_with_a_setting_of_a_newer_SDK_is_refused_by_name_and_place(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.json")
	doc := func(scope, spec string) string {
		return `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"` + scope + `"},"spec":` + spec + "}"
	}
	for setting, want := range map[string]string{
		`{"offlineQueue":{"forever":true}}`:   `line 2, column 108: unknown field "forever" in spec.offlineQueue`,
		`{"offlineQueue":{"maxItems":20000}}`: `line 2, column 119: spec.offlineQueue.maxItems 20000: 1 to 10000`,
	} {
		content := `{"apiVersion":"policyd/v1","kind":"List","revision":12,"items":[` + doc("shop/pay", `{"maxAttempts":5}`) + ",\n" + doc("shop/search", setting) + "]}"
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := policyd.New(policyd.WithPolicyFile(path)); err == nil || !strings.Contains(err.Error(), "p.json: "+want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestEffective_names_the_origin_of_each_value(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.json")
	doc := func(scope, spec string) string {
		return `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"` + scope + `"},"spec":` + spec + `}`
	}
	content := `{"apiVersion":"policyd/v1","kind":"List","revision":12,"items":[` + strings.Join([]string{
		doc("global", `{"maxAttempts":2,"ceilings":{"maxAttempts":4},"backoff":{"base":"100ms"}}`),
		doc("shop", `{"maxAttempts":6,"retryOn":{"http":[503]}}`),
	}, ",") + `]}`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newWatched(t, policyd.WithPolicyFile(path), policyd.WithCacheDir(""))
	e := c.Effective("shop/pay/charge")
	if e.Endpoint != "shop/pay/charge" || e.Revision != 12 {
		t.Errorf("effective %+v", e)
	}
	for field, want := range map[string]policyd.Value{
		"maxAttempts": {Value: int64(4), From: "ceiling global", Shadow: []policyd.Shadow{
			{Value: int64(6), From: "shop"}, {Value: int64(2), From: "global"}, {Value: int64(3), From: "built-in"},
		}},
		"backoff.base":  {Value: 100 * time.Millisecond, From: "global", Shadow: []policyd.Shadow{{Value: 200 * time.Millisecond, From: "built-in"}}},
		"retryOn.http":  {Value: []string{"503"}, From: "shop", Shadow: []policyd.Shadow{{Value: []string{"429", "502", "503", "504"}, From: "built-in"}}},
		"budget.ratio":  {Value: 0.1, From: "built-in"},
		"observe":       {Value: false, From: "built-in"},
		"budget.window": {Value: 10 * time.Second, From: "built-in"},
	} {
		if got := e.Values[field]; fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
			t.Errorf("%s = %#v\nwant %#v", field, got, want)
		}
	}
	if _, ok := e.Values["timeouts.overall"]; ok {
		t.Error("a setting without a value is listed")
	}
}
