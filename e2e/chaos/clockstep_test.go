// SPDX-License-Identifier: Apache-2.0

//go:build linux && chaosclock

package chaos_test

import "time"

// stepClock moves the time of day of this process; see buildFleet.
func stepClock(d time.Duration) { time.Step(int64(d / time.Second)) }
