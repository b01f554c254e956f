# SPDX-License-Identifier: MIT
"""Flask: a view with a decorator, a class of views, a template, and SQLite."""

import functools
import sqlite3

import flask
import flask.views

app = flask.Flask(__name__)


def members_only(view):
    @functools.wraps(view)
    def wrapper(*arguments, **named):
        if not flask.request.args.get("member"):
            flask.abort(403)
        return view(*arguments, **named)

    return wrapper


def look_up(number: int):
    database = sqlite3.connect(":memory:")
    row = database.execute("SELECT 'item ' || ?, 100 + 7 * ?", (number, number)).fetchone()
    database.close()
    return row


@app.get("/item/<int:number>")
@members_only
def item(number: int):
    name, cents = look_up(number)
    return {"name": name, "cents": cents}


class Page(flask.views.MethodView):
    def get(self, number: int):
        name, cents = look_up(number)
        return flask.render_template("item.html", name=name, cents=cents)


app.add_url_rule("/page/<int:number>", view_func=Page.as_view("page"))
