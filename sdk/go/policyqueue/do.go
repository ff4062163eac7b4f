// SPDX-License-Identifier: Apache-2.0

package policyqueue

import (
	"context"
	"fmt"

	policyd "github.com/policyd/policyd/sdk/go"
)

// Do has the endpoint's [Sender] make a call with payload, under the endpoint's policy as
// [policyd.Do] does, and keeps it where the policy permits that. The payload may be used until
// Do returns. What the sender calls should belong to the same endpoint: a failure that the
// policy of another one ended is not kept.
func (q *Queue) Do(ctx context.Context, endpoint string, payload []byte, opts ...policyd.CallOption) error {
	send := q.cfg.Senders[endpoint]
	if send == nil {
		return fmt.Errorf("policyqueue: Config.Senders has none for %q", endpoint)
	}
	opts = append(opts[:len(opts):len(opts)], policyd.Using(q.client))
	in := q.intend(q.core.TargetNamed(policyd.WithCall(ctx, opts...), q.client, endpoint, false))
	if in != nil && int64(len(payload)) > q.cfg.MaxBody {
		q.tooLong(endpoint)
		in = nil
	}
	if in != nil {
		in.body = func() ([]byte, error) { return payload, nil }
		opts = append(opts, policyd.IdempotencyKey(in.key))
		if err := q.join(ctx, in); err != nil {
			return err
		}
	}
	_, err := policyd.Do(ctx, endpoint, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, send(ctx, payload)
	}, opts...)
	if err == nil || in == nil {
		return err
	}
	if e, gaveUp := failedBy(err, endpoint); gaveUp {
		if told := q.keepFailed(ctx, in, e); told != nil {
			return told
		}
	}
	return err
}
