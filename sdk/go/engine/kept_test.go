// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"testing"

	"github.com/policyd/policyd/sdk/go/engine"
)

// The other lists of the file are those of package backlog.
func TestAgain_vectors(t *testing.T) {
	var vectors struct {
		scriptFile
		Codes, Endings, Lanes json.RawMessage
	}
	readVectors(t, "offline-queue.json", &vectors)
	runCases(t, &vectors.scriptFile)
}

func TestCompile_offline_queue(t *testing.T) {
	p := rigPolicy(t, map[engine.Field]engine.Value{engine.OfflineQueueEnabled: engine.Bool(true), engine.OfflineQueueMaxItems: engine.Int(7)})
	if p.Extras == nil || p.Extras.Queue != (engine.QueuePolicy{Enabled: true, MaxItems: 7, TTL: 12 * 3600e9}) {
		t.Errorf("extras %+v", p.Extras)
	}
	off := rigPolicy(t, map[engine.Field]engine.Value{engine.OfflineQueueEnabled: engine.Bool(false), engine.OfflineQueueMaxItems: engine.Int(7)})
	if off.Extras != nil {
		t.Errorf("extras %+v of a queue that is off", off.Extras)
	}
}
