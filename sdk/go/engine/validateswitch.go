// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits on kill switches.
const (
	MaxReasonBytes   = 1 << 10
	MaxIncidentBytes = 128
	MaxRestoreOver   = time.Hour
)

// ValidateSwitch returns the rules that a kill switch breaks at now. A switch that has
// ended breaks none by it: its restore may still be going on.
func ValidateSwitch(sw Switch, now time.Time) []Violation {
	c := switchChecker{sw: &sw}
	if !validSwitchID(sw.ID) {
		c.add("id", sw.ID, "1 to 63 of a-z, 0-9, '.', '_' and '-', starting and ending with a letter or digit", "")
	}
	if !slices.Contains(Actions(), sw.Action) {
		c.add("spec.action", string(sw.Action), "must be one of "+actionWords(), "")
	}
	c.scopes()
	c.numbers()
	c.end(now)
	c.texts()
	return c.found
}

type switchChecker struct {
	sw    *Switch
	found []Violation
}

func (c *switchChecker) add(path, value, rule, fix string) {
	c.found = append(c.found, Violation{Scope: c.sw.Scope, Path: path, Value: clip(value), Rule: rule, Fix: fix})
}

func (c *switchChecker) scopes() {
	sw := c.sw
	if _, err := ParseScope(string(sw.Scope)); err != nil {
		c.add("spec.scope", string(sw.Scope), err.Error(), "")
		return
	}
	if sw.Action == ForceClosed && sw.Scope == Global {
		c.add("spec.scope", string(sw.Scope), "force-closed is never allowed on global", "choose a namespace, a service or an endpoint")
	}
	if len(sw.Except) > MaxListItems {
		c.add("spec.except", strconv.Itoa(len(sw.Except)), fmt.Sprintf("at most %d scopes", MaxListItems), "")
		return
	}
	for _, except := range sw.Except {
		if _, err := ParseScope(string(except)); err != nil {
			c.add("spec.except", string(except), err.Error(), "")
		} else if except == sw.Scope || !sw.Scope.Contains(except) {
			c.add("spec.except", string(except), "must lie below the scope "+string(sw.Scope), "")
		}
	}
}

func (c *switchChecker) numbers() {
	sw := c.sw
	if sw.Percent < 1 || sw.Percent > 100 {
		c.add("spec.percent", strconv.Itoa(sw.Percent), "1 to 100", "")
	}
	if sw.Criticality > Critical {
		c.add("spec.criticality", strconv.Itoa(int(sw.Criticality)), "must be one of critical, standard, sheddable", "")
	}
	for _, share := range []struct {
		path   string
		value  int64
		action Action
	}{{"spec.factor", sw.Factor, TightenBudget}, {"spec.admit", sw.Admit, ForceOpen}} {
		if share.value < 0 || share.value > Million {
			c.add(share.path, Micro(share.value).String(), "0 to 1", "")
		} else if share.value != 0 && sw.Action != share.action {
			c.add(share.path, Micro(share.value).String(), "only for "+string(share.action), "")
		}
	}
	if sw.Restore < 0 || sw.Restore > MaxRestoreOver {
		c.add("spec.restore.over", FormatDuration(sw.Restore), "0s to "+FormatDuration(MaxRestoreOver), "")
	}
}

func (c *switchChecker) end(now time.Time) {
	most := MaxSwitchDuration
	if c.sw.Action == ForceClosed {
		most = MaxForceClosed
	}
	switch left := c.sw.Ends.Sub(now); {
	case c.sw.Ends.IsZero():
		c.add("expiresAt", "", "required: a switch must end by itself", "")
	case left > most:
		c.add("expiresAt", FormatDuration(left.Round(time.Second))+" from now", "at most "+FormatDuration(most)+" from now", "start with less; a switch can be extended")
	}
}

func (c *switchChecker) texts() {
	sw := c.sw
	if strings.TrimSpace(sw.Reason) == "" {
		c.add("spec.reason", "", "required", "say in a few words why; everyone whom the switch concerns reads it")
	}
	if sw.Scope == Global && strings.TrimSpace(sw.Incident) == "" {
		c.add("spec.incident", "", "required for a global switch", "")
	}
	for _, text := range []struct {
		path, value string
		most        int
	}{{"spec.reason", sw.Reason, MaxReasonBytes}, {"spec.incident", sw.Incident, MaxIncidentBytes}} {
		switch {
		case len(text.value) > text.most:
			c.add(text.path, "", fmt.Sprintf("at most %d bytes", text.most), "")
		case !utf8.ValidString(text.value) || HasControl(text.value, false):
			c.add(text.path, strconv.Quote(text.value), "must be text without control characters", "")
		}
	}
}

// validSwitchID follows the rules of scope names; no segment is reserved.
func validSwitchID(id string) bool {
	return id == string(Global) || checkSegment(id) == nil
}

func actionWords() string {
	words := make([]string, 0, len(Actions()))
	for _, a := range Actions() {
		words = append(words, string(a))
	}
	return strings.Join(words, ", ")
}
