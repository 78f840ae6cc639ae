/** Addresses of the API and of the page's views, relative to the path under which the document is served. */

const base = new URL(".", document.baseURI);

/** An address of the API: `api("topics", name)`; each part is escaped. */
export function api(...parts: string[]): string {
  return new URL(["api", ...parts.map(encodeURIComponent)].join("/"), base).href;
}

/** The path of a view: `path("topics", name)` is `/topics/name` below the base path. */
export function path(...parts: string[]): string {
  return base.pathname + parts.map(encodeURIComponent).join("/");
}

/** The unescaped parts of a path below the base path; null if the path is outside of it. */
export function partsOf(pathname: string): string[] | null {
  try {
    const above = segments(base.pathname);
    const parts = segments(pathname);
    return above.every((each, index) => each === parts[index]) ? parts.slice(above.length) : null;
  } catch {
    return null;
  }
}

function segments(pathname: string): string[] {
  return pathname.split("/").filter(Boolean).map(decodeURIComponent);
}

/** A file at the top of the built page. */
export function file(name: string): string {
  return new URL(`static/${name}`, base).href;
}
