// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// queue waits for one of the endpoint's slots, no longer than the call may take in all. gone
// is why the caller left, if it did; then the call is over.
func (k *call) queue(ctx context.Context, cancelled <-chan struct{}) (d *engine.Decision, gone error) {
	var late <-chan time.Time
	if overall := k.engine.Policy().Timeouts.Overall; overall > 0 {
		timer := time.NewTimer(k.began.Add(overall).Sub(k.client.now()))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-k.engine.Turn():
	case <-late:
		gone = ctx.Err() // which has passed, too, if it is not nil
	case <-ctx.Done():
		gone = ctx.Err()
	case <-cancelled:
		gone = errRequestCancelled
	}
	if gone != nil {
		k.note(k.engine.Abandon(k.client.now()))
		return nil, k.left(ctx, gone)
	}
	return k.engine.Enter(k.client.now()), nil
}
