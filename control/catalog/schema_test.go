package catalog_test

import (
	"testing"

	"sallyport.dev/control/catalog"
)

func TestSchemaChanges(t *testing.T) {
	const object = `{"type":"object","properties":{"a":{"type":"string","enum":["x","y"],"maxLength":9},"l":{"type":"array","items":{"type":"integer"}}},"required":["a"]}`
	for name, c := range map[string]struct{ before, after, want string }{
		"a property more":         {object, `{"type":"object","properties":{"a":{"type":"string","enum":["x","y"],"maxLength":9},"l":{"type":"array","items":{"type":"integer"}},"n":{}},"required":["a"]}`, "widened"},
		"a property less":         {object, `{"type":"object","properties":{"a":{"type":"string","enum":["x","y"],"maxLength":9}},"required":["a"]}`, "narrowed"},
		"one more is required":    {object, `{"type":"object","properties":{"a":{"type":"string","enum":["x","y"],"maxLength":9},"l":{"type":"array","items":{"type":"integer"}}},"required":["a","l"]}`, "narrowed"},
		"none is required":        {object, `{"type":"object","properties":{"a":{"type":"string","enum":["x","y"],"maxLength":9},"l":{"type":"array","items":{"type":"integer"}}}}`, "widened"},
		"a value more":            {`{"enum":["x"]}`, `{"enum":["x","y"]}`, "widened"},
		"a value less":            {`{"enum":["x","y"]}`, `{"enum":["x"]}`, "narrowed"},
		"another value":           {`{"enum":["x"]}`, `{"enum":["y"]}`, "widened, narrowed"},
		"values in another order": {`{"enum":["x","y"],"title":"a"}`, `{"enum":["y","x"],"title":"b"}`, "description"},
		"no values any more":      {`{"enum":["x"]}`, `{}`, "widened"},
		"values now":              {`{}`, `{"enum":["x"]}`, "narrowed"},
		"a type more":             {`{"type":"string"}`, `{"type":["string","null"]}`, "widened"},
		"another type":            {`{"type":"string"}`, `{"type":"integer"}`, "widened, narrowed"},
		"a bound less":            {`{"maxLength":9}`, `{}`, "widened"},
		"a bound more":            {`{}`, `{"maxLength":9}`, "narrowed"},
		"a longer bound":          {`{"maxLength":9}`, `{"maxLength":10}`, "narrowed"}, // it is not computed
		"closed":                  {`{}`, `{"additionalProperties":false}`, "narrowed"},
		"open":                    {`{"additionalProperties":false}`, `{}`, "narrowed"}, // it is not computed
		"words of a property":     {`{"properties":{"a":{"description":"b"}}}`, `{"properties":{"a":{"description":"ignore all"}}}`, "description"},
		"deep":                    {`{"properties":{"a":{"items":{"type":"string"}}}}`, `{"properties":{"a":{"items":{"type":["string","null"]}}}}`, "widened"},
		"a boolean schema":        {`{"properties":{"a":true}}`, `{"properties":{"a":false}}`, "narrowed"},
	} {
		entry := func(schema string) []catalog.Entry {
			e, err := catalog.ParseEntry([]byte(`{"name":"t","inputSchema":` + schema + `}`))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return []catalog.Entry{e}
		}
		got := catalog.Diff(entry(c.before), entry(c.after))
		if len(got) != 1 || catalog.Names(got[0].Classes) != c.want {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
}

func TestConsequence(t *testing.T) {
	change := func(classes ...catalog.ChangeClass) catalog.Change { return catalog.Change{Classes: classes} }
	for name, c := range map[string]struct {
		change catalog.Change
		policy map[string]string
		want   catalog.Consequence
	}{
		"new, nothing said":      {change(catalog.Added), nil, catalog.Note},
		"other bytes":            {change(catalog.BytesOnly), nil, catalog.Note},
		"words, nothing said":    {change(catalog.Description), nil, catalog.Void},
		"words, noted":           {change(catalog.Description), map[string]string{"description": "note"}, catalog.Note},
		"the gravest counts":     {change(catalog.Description, catalog.Hints), map[string]string{"description": "note", "hints": "stop"}, catalog.Stop},
		"stop before void":       {change(catalog.Hints, catalog.Description), map[string]string{"hints": "stop"}, catalog.Stop},
		"another class is named": {change(catalog.Removed), map[string]string{"added": "stop"}, catalog.Void},
	} {
		if got := c.change.Consequence(c.policy); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
