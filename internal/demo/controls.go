// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"
)

// controls serves the backend to the fleet and its controls to a person with curl.
func controls(b *backend, f *fleet, quit func()) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", b.serve)
	mux.HandleFunc("GET /demo", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(demoHeader, pid())
		fmt.Fprintf(w, "demo fleet, process %s\n", pid())
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, Usage(r.Host))
	})
	mux.HandleFunc("GET /backend", func(w http.ResponseWriter, r *http.Request) {
		c := b.counts()
		if strings.Contains(r.Header.Get("Accept"), "application/json") {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(c)
			return
		}
		fmt.Fprint(w, c)
	})
	mux.HandleFunc("POST /backend", func(w http.ResponseWriter, r *http.Request) {
		if err := b.turn(r.URL.Query()); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, b.counts())
	})
	mux.HandleFunc("GET /instances", func(w http.ResponseWriter, _ *http.Request) {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "INSTANCE\tSTATE\tREVISION\tSOURCE\tAS OF\tOK\tFAILED")
		for _, in := range f.instances {
			s := in.client.Load().Status()
			asOf := "never"
			if !s.AsOf.IsZero() {
				asOf = time.Since(s.AsOf).Round(time.Second).String() + " ago"
			}
			fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%s\t%d\t%d\n", in.name, s.State, s.Revision, s.Source, asOf, in.ok.Load(), in.failed.Load())
		}
		_ = tw.Flush()
	})
	mux.HandleFunc("POST /instances/{name}/restart", func(w http.ResponseWriter, r *http.Request) {
		err := f.restartInstance(r.Context(), r.PathValue("name"))
		switch {
		case errors.Is(err, errNoInstance):
			http.Error(w, err.Error()+"; see GET /instances", http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			fmt.Fprintf(w, "%s restarted\n", r.PathValue("name"))
		}
	})
	mux.Handle("GET /instances/{name}/policyz", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, in := range f.instances {
			if in.name == r.PathValue("name") {
				in.client.Load().Handler().ServeHTTP(w, r)
				return
			}
		}
		http.Error(w, errNoInstance.Error(), http.StatusNotFound)
	}))
	mux.HandleFunc("POST /quit", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "bye")
		quit()
	})
	return mux
}

// Usage says what the demo's controls are.
func Usage(addr string) string {
	return fmt.Sprintf(`demo fleet: 20 instances of 3 services call a backend over HTTP

curl %[1]s/backend                                         what arrives
curl -X POST '%[1]s/backend?fail=0.5&latency=200ms'        failure share and latency
curl -X POST '%[1]s/backend?capacity=100'                  answers per second, 0: no bound
curl %[1]s/instances                                       every instance: link, revision, source
curl -X POST %[1]s/instances/cart-1/restart                restart one
curl %[1]s/instances/cart-1/policyz                        its policies, breakers and budgets
curl -X POST %[1]s/quit                                    end the fleet
`, addr)
}
