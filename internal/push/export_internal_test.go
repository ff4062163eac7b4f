// SPDX-License-Identifier: Apache-2.0

package push

import "google.golang.org/grpc/mem"

// Unmarshal reads what an instance sent as the server's codec does.
func Unmarshal(data []byte, v any) error {
	return newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, v)
}
