// SPDX-License-Identifier: Apache-2.0

package engine

// Unsupported returns the settings of a document that this engine cannot honour. A block
// that the document switches off, and a value that is the built-in one, ask for nothing; a
// block that is switched on by being set asks for all of it.
func Unsupported(s Settings) []Field {
	var fields []Field
	for f := Field(1); f < numFields; f++ {
		v, ok := s[f]
		if !ok || f.Spec().Supported {
			continue
		}
		if block, member := f.SwitchOf(); block != 0 && !block.Spec().Supported {
			on, explicit := s[block]
			if explicit && !on.True() {
				continue
			}
			if member || on.True() {
				fields = append(fields, f)
			}
			continue
		}
		if d := f.Spec().Default; d == nil || !d.Equal(v) {
			fields = append(fields, f)
		}
	}
	return fields
}
