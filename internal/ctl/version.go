// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionView struct {
	envelope
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Version of policyctl",
		Example: "  policyctl version\n  policyctl version -o json",
		Args:    maxArgs(0),
		RunE: func(*cobra.Command, []string) error {
			v := version()
			return a.result(v.Version, v, func() {
				commit := ""
				if v.Commit != "" {
					commit = ", commit " + v.Commit
				}
				a.out.printf("policyctl %s (%s, %s%s)\n", v.Version, v.Go, v.Platform, commit)
			})
		},
	}
}

func version() versionView {
	v := versionView{envelope: kind("Version"), Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			v.Commit = s.Value[:12]
		}
	}
	return v
}
