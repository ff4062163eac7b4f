// SPDX-License-Identifier: Apache-2.0

// Package payload is what every system of the benchmark carries: a policy with the time of
// its commit.
package payload

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// mark stands before the time of commit in a document that is measured.
const mark = "committed-at="

const markDigits = 20

// Stamp is the time of a commit, in nanoseconds; 0 marks a document that is not timed.
type Stamp int64

// Now is the time of a commit that happens now.
func Now() Stamp { return Stamp(time.Now().UnixNano()) }

// Text is about size bytes that carry the time of a commit.
func Text(at Stamp, size int) string {
	s := strings.Repeat("y", len(mark)+markDigits)
	if at > 0 {
		s = fmt.Sprintf("%s%0*d", mark, markDigits, at)
	}
	return s + strings.Repeat("x", max(size-len(s), 0))
}

// Committed finds the time of commit in what arrived.
func Committed(b []byte) (Stamp, bool) {
	i := bytes.Index(b, []byte(mark))
	if i < 0 || len(b) < i+len(mark)+markDigits {
		return 0, false
	}
	at, err := strconv.ParseInt(string(b[i+len(mark):][:markDigits]), 10, 64)
	return Stamp(at), err == nil
}

// Scope is where the document that changes stands.
const Scope = "shop"

// Document is the policy that every system carries: size bytes in all. Each one differs from
// the one before in more than its description, so that engines have something to do.
func Document(at Stamp, size int) *policydv1.Policy {
	const settings = 60
	return &policydv1.Policy{Scope: Scope, Spec: &policydv1.PolicySpec{
		Description: proto.String(Text(at, size-settings)),
		MaxAttempts: proto.Int64(2 + int64(at/1000)%2),
		Backoff:     &policydv1.Backoff{Base: durationpb.New(200 * time.Millisecond), Max: durationpb.New(2 * time.Second)},
		Timeouts:    &policydv1.Timeouts{Attempt: durationpb.New(2 * time.Second), Overall: durationpb.New(5 * time.Second)},
		Budget:      &policydv1.Budget{Ratio: proto.Float64(0.1), Window: durationpb.New(10 * time.Second)},
	}}
}

// Encoded is a message of this benchmark, as bytes.
func Encoded(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err) // it is made here
	}
	return b
}

// KillSwitch is a switch with the time of its commit.
func KillSwitch(at Stamp, size int) *policydv1.KillSwitch {
	return &policydv1.KillSwitch{
		Id: "ks", ExpiresAt: timestamppb.New(time.Now().Add(time.Hour)),
		Spec: &policydv1.SwitchSpec{
			Scope: Scope, Action: policydv1.SwitchAction_SWITCH_ACTION_DISABLE_RETRIES, Reason: Text(at, size),
		},
	}
}
