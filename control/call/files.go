package call

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"iter"
	"slices"

	"sallyport.dev/control"
	"sallyport.dev/relay/strictjson"
)

// pieceBytes is how much of a file is handed over at once.
const pieceBytes = 256 << 10

// maxFiles is how many files one result may name.
const maxFiles = 16

// File is a body that a result names as a file of the sandbox. Its bytes are made when they are handed over: they stand in the answer that the
// journal keeps, and are not held a second time.
type File struct {
	Digest control.Digest // its hex form is the file's name
	Size   int64          // over 0
	pieces iter.Seq[[]byte]
}

// Pieces yields the file's bytes in order, at most 256 KiB at once. They are not to be changed.
func (f *File) Pieces() iter.Seq[[]byte] { return f.pieces }

// fileOf is the file of these pieces; nil where there are none.
func fileOf(pieces iter.Seq[[]byte]) *File {
	sum, size := sha256.New(), int64(0)
	for p := range pieces {
		sum.Write(p)
		size += int64(len(p))
	}
	if size == 0 {
		return nil
	}
	return &File{Digest: control.Digest(sum.Sum(nil)), Size: size, pieces: pieces}
}

// rawFile is a file of bytes as they are.
func rawFile(raw []byte) *File { return fileOf(slices.Chunk(raw, pieceBytes)) }

// textFile is a file of the text of a JSON string.
func textFile(quoted []byte) *File { return fileOf(strictjson.Pieces(quoted, pieceBytes-64)) }

// base64File is a file of the bytes that a JSON string holds in base64 (RFC 4648, section 4); nil where it does not.
func base64File(quoted []byte) *File {
	valid := true
	pieces := func(yield func([]byte) bool) {
		var rest []byte // of a group of four
		for text := range strictjson.Pieces(quoted, pieceBytes-64) {
			text = slices.Concat(rest, text)
			whole := len(text) &^ 3
			rest = text[whole:]
			data := make([]byte, base64.StdEncoding.DecodedLen(whole))
			n, err := base64.StdEncoding.Strict().Decode(data, text[:whole])
			if err != nil || bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0 { // the decoder skips line ends
				valid = false
				return
			}
			if n > 0 && !yield(data[:n]) {
				return
			}
		}
		valid = valid && len(rest) == 0
	}
	f := fileOf(pieces)
	if !valid {
		return nil
	}
	return f
}
