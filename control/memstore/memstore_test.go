package memstore_test

import (
	"testing"

	"go.uber.org/goleak"

	"sallyport.dev/control/memstore"
	"sallyport.dev/control/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Stores {
		d := memstore.New()
		return storetest.Stores{Call: d, Inbox: d, Grant: d, Session: d, Revocation: d, People: d, PutCredential: d.PutCredential}
	})
}
